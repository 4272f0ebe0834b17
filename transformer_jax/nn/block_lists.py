"""Which blocks of keys each block of queries visits: those of which a mask allows nothing are left out."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Int

from transformer_jax.nn.attention_masks import AttentionMask
from transformer_jax.nn.score_block import BlockGrid, opposite

Carry = TypeVar("Carry")
Numbers = np.ndarray | Array


class KeyBlocks(NamedTuple):
    """A list of blocks of keys for each block of queries."""

    order: Int[Numbers, "nq nk"]  # numbers of the key blocks; those that are listed come first
    num_listed: Int[Numbers, " nq"]  # how many are listed


@dataclasses.dataclass(frozen=True)
class BlockLists:
    """Key blocks of each query block: those that are allowed in full, and those of which a part may be."""

    full: KeyBlocks
    mixed: KeyBlocks

    def visit(self, query_block: Array, step: Callable[[Array, bool, Carry], Carry], carry: Carry) -> Carry:
        """Run `step(key_block, is_mixed, carry)` for each key block of a query block."""
        for is_mixed, (order, num_listed) in ((False, self.full), (True, self.mixed)):
            if isinstance(num_listed, np.ndarray) and not num_listed.any():
                continue  # the program need not hold the step

            def one(number: Any, carry: Carry, order: Any = order, is_mixed: bool = is_mixed) -> Carry:
                return step(jnp.asarray(order)[query_block, number], is_mixed, carry)

            carry = lax.fori_loop(0, jnp.asarray(num_listed)[query_block], one, carry)
        return carry


def list_blocks(mask: AttentionMask | None, grid: BlockGrid) -> BlockLists:
    """List the blocks of one batch element.

    The lists are NumPy arrays where they follow from numbers that are known before the program runs. Else they are
    computed in it, from arrays as long as the sequences at most.
    """
    shape = grid.num_query_blocks, grid.num_key_blocks
    some, every = (True, True) if mask is None else mask.bounds(grid)
    is_whole = (np.arange(shape[1]) + 1) * grid.key_size <= grid.num_keys  # the last one may end beyond the keys
    every = every & some & is_whole
    full, mixed = every, some & opposite(every)
    return BlockLists(*(_listed(_broadcast(blocks, shape)) for blocks in (full, mixed)))


def _listed(blocks: Numbers) -> KeyBlocks:
    xp: Any = jnp if isinstance(blocks, Array) else np
    return KeyBlocks(xp.argsort(~blocks, axis=1, stable=True), blocks.sum(1))


def _broadcast(blocks: Any, shape: tuple[int, int]) -> Numbers:
    return jnp.broadcast_to(blocks, shape) if isinstance(blocks, Array) else np.broadcast_to(blocks, shape)
