"""Which keys each block of queries visits: blocks of which a mask allows nothing are left out."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int

from transformer_jax.attention.block_sizes import BlockSizes
from transformer_jax.attention.masks.symbolic import AttentionMask
from transformer_jax.attention.score_block import BlockGrid, Range, opposite

Carry = TypeVar("Carry")
Numbers = np.ndarray | Array


class Part(NamedTuple):
    """Part of the logits of a block of queries that is computed in one step."""

    first: int  # query of the block; those before it see none of the keys
    keys: Range
    is_mixed: bool  # whether the mask may forbid some of it


class KeyBlocks(NamedTuple):
    """A list of blocks of keys, all of one size, for each block of queries."""

    order: Int[Numbers, "nq n"]  # numbers of the key blocks; those that are listed come first
    num_listed: Int[Numbers, " nq"]  # how many are listed
    size: int  # keys of a block
    parts: tuple[Part, ...]  # of each block; their keys count from its first one


@dataclasses.dataclass(frozen=True)
class BlockLists:
    """Key blocks of each query block: those that are allowed in full, and those of which a part may be."""

    full: KeyBlocks
    mixed: KeyBlocks

    def visit(self, query_block: Array, step: Callable[[Part, Carry], Carry], carry: Carry) -> Carry:
        """Run `step` on all parts of the key blocks of a query block."""
        for blocks in (self.full, self.mixed):
            if isinstance(blocks.num_listed, np.ndarray) and not blocks.num_listed.any():
                continue  # the program need not hold the step

            def of_block(number: Any, carry: Carry, blocks: KeyBlocks = blocks) -> Carry:
                start = jnp.asarray(blocks.order)[query_block, number] * blocks.size
                for first, keys, is_mixed in blocks.parts:
                    carry = step(Part(first, Range(start + keys.start, keys.size), is_mixed), carry)
                return carry

            carry = lax.fori_loop(0, jnp.asarray(blocks.num_listed)[query_block], of_block, carry)
        return carry


def list_blocks(mask: AttentionMask | None, grid: BlockGrid, sizes: BlockSizes) -> BlockLists:
    """List the blocks of a grid that is cut into these sizes.

    The lists are NumPy arrays where they follow from numbers that are known before the program runs. Else they are
    computed in it, from arrays as long as the sequences at most.
    """
    shape = grid.num_query_blocks, grid.num_key_blocks
    some, every = (True, True) if mask is None else mask.bounds(grid)
    is_whole = (np.arange(shape[1]) + 1) * grid.key_size <= grid.num_keys  # the last one may end beyond the keys
    every = every & some & is_whole
    # XLA moves the products of an only block out of a loop, so that they run whether it is listed or not: it is listed
    # as mixed for all queries, and no blocks are joined to one.
    is_full = not isinstance(every, Array) and every.all()
    if shape[1] == 1 and not is_full:
        some, every = True, np.zeros(shape, bool)
    num_joined = min(sizes.num_joined, max(1, shape[1] // 2))
    full, is_covered = _joined(_broadcast(every, shape), num_joined)
    mixed = _broadcast(some & opposite(is_covered), shape)
    width = num_joined * sizes.keys
    stairs = tuple(
        Part(first, Range(first, min(sizes.stair, sizes.keys - first)), True)
        for first in range(0, sizes.keys, sizes.stair)
    )
    return BlockLists(_listed(full, width, (Part(0, Range(0, width), False),)), _listed(mixed, sizes.keys, stairs))


def _joined(every: Numbers, number: int) -> tuple[Numbers, Numbers]:
    """Groups of neighbouring key blocks that are all allowed in full, and the blocks that are in one."""
    xp: Any = jnp if isinstance(every, Array) else np
    num_queries, num_keys = every.shape
    rest = num_keys % number  # blocks at the end, which have too few neighbours
    groups = xp.all(every[:, : num_keys - rest].reshape(num_queries, -1, number), 2)
    return groups, xp.pad(xp.repeat(groups, number, 1), ((0, 0), (0, rest)))


def _listed(blocks: Numbers, size: int, parts: tuple[Part, ...]) -> KeyBlocks:
    xp: Any = jnp if isinstance(blocks, Array) else np
    return KeyBlocks(xp.argsort(~blocks, axis=1, stable=True), blocks.sum(1), size, parts)


def _broadcast(blocks: Any, shape: tuple[int, int]) -> Numbers:
    return jnp.broadcast_to(blocks, shape) if isinstance(blocks, Array) else np.broadcast_to(blocks, shape)
