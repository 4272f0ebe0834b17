"""How blockwise attention goes through the logits: in rows, and in blocks of each row.

A row is a batch element and a head of keys and values, with the group of query heads that share it.

Blocks of which a mask allows nothing are left out. The sizes are those that measured fastest on CPUs
(`docs/attention.md`): large blocks make fast products; small ones follow the edge of a mask, and leave out more of what
it forbids. So a mask gets smaller blocks. `Causal()`, which allows each block off the diagonal in full or not at all,
gets large ones where such fill the sequence, and so does a causal window where one block holds all; of blocks on the
diagonal a staircase is computed:

    ■ · · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from transformer_jax.attention.masks.symbolic import AttentionMask, reach
from transformer_jax.attention.score_block import BlockFlags, BlockGrid, Range
from transformer_jax.trees import Arrays

LARGE = 1024  # positions of a block at most
SMALL = 512
STAIR = 256  # keys of a stair at most
MAX_AT_ONCE = 64  # rows, on accelerators
ALIGNMENT = 16  # positions: a multiple of the vectors of CPUs and of the tiles of accelerators

Carry = TypeVar("Carry")
Total = TypeVar("Total")
Results = TypeVar("Results")
Known = np.ndarray | Array  # NumPy where it is known before the program runs


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """How the logits of a head are cut into blocks."""

    queries: int  # of a block
    keys: int
    num_stairs: int = 1  # into which the keys of a mixed block are cut; queries before a stair's first key leave it out

    @property
    def stair(self) -> int:
        """Keys of a stair; the last one may be narrower."""
        return -(-self.keys // self.num_stairs)


def choose_block_sizes(mask: AttentionMask | None, num_queries: int, num_keys: int) -> BlockSizes:
    """The sizes that measured fastest for a mask, a number of queries and a number of keys."""
    if mask is None:
        return BlockSizes(_even(num_queries, LARGE), _even(num_keys, LARGE))
    left, right = reach(mask) or (None, None)
    num_blocks = -(-num_queries // LARGE)
    are_alike = num_blocks == 1 or (left is None and num_queries % num_blocks == 0)
    if right == 0 and num_queries == num_keys and are_alike:
        size = num_queries // num_blocks
        return BlockSizes(size, size, num_stairs=-(-size // STAIR))
    return BlockSizes(_even(num_queries, SMALL), _even(num_keys, SMALL))


def _even(length: int, longest: int) -> int:
    """Size of as few blocks as possible of at most `longest` positions, so that the last one is nearly full as well."""
    size = -(-length // -(-length // longest))
    return size if size == length else -(-size // ALIGNMENT) * ALIGNMENT


class Part(NamedTuple):
    """Part of the logits of a block of queries that is computed in one step."""

    first: int  # query of the block; those before it see none of the keys
    keys: Range
    is_mixed: bool  # whether the mask may forbid some of it


class KeyBlocks(NamedTuple):
    """A list of blocks of keys for each block of queries."""

    order: Int[Known, "nq nk"]  # numbers of the key blocks; those that are listed come first
    num_listed: Int[Known, " nq"]  # how many are listed
    parts: tuple[Part, ...]  # of each block; their keys count from its first one


class BlockLists(NamedTuple):
    """Key blocks of each query block: those that are allowed in full, and those of which a part may be."""

    full: KeyBlocks
    mixed: KeyBlocks
    size: int  # keys of a block

    def visit(self, query_block: Array, step: Callable[[Part, Carry], Carry], carry: Carry) -> Carry:
        """Run `step` on all parts of the key blocks of a query block."""
        for blocks in (self.full, self.mixed):
            if isinstance(blocks.num_listed, np.ndarray) and not blocks.num_listed.any():
                continue  # the program need not hold the step

            def of_block(number: Array, carry: Carry, blocks: KeyBlocks = blocks) -> Carry:
                start = jnp.asarray(blocks.order)[query_block, number] * self.size
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
    # as mixed for all queries.
    is_full = not isinstance(every, Array) and every.all()
    if shape[1] == 1 and not is_full:
        some, every = True, np.zeros(shape, bool)
    stairs = tuple(
        Part(first, Range(first, min(sizes.stair, sizes.keys - first)), True)
        for first in range(0, sizes.keys, sizes.stair)
    )
    whole = (Part(0, Range(0, sizes.keys), False),)
    return BlockLists(_listed(every, shape, whole), _listed(some & ~every, shape, stairs), sizes.keys)


def _listed(flags: BlockFlags, shape: tuple[int, int], parts: tuple[Part, ...]) -> KeyBlocks:
    xp = jnp if isinstance(flags, Array) else np
    blocks: Bool[Known, "nq nk"] = xp.broadcast_to(flags, shape)
    return KeyBlocks(xp.argsort(~blocks, axis=1, stable=True), blocks.sum(1), parts)


def split_blocks(x: Float[Array, "N H T w"], group: int, size: int) -> Float[Array, "N Hkv nq G q w"]:
    """Cut the positions of each head into blocks of a size, with zeros at the end where needed."""
    x = fill_blocks(x, size)
    return x.reshape(len(x), -1, group, x.shape[2] // size, size, x.shape[-1]).swapaxes(2, 3)


def fill_blocks(x: Float[Array, "N H T w"], size: int) -> Float[Array, "N H padded w"]:
    """Positions up to a multiple of a size; the new ones are zero."""
    rest = -x.shape[2] % size
    return jnp.pad(x, ((0, 0), (0, 0), (0, rest), (0, 0))) if rest else x


def join_blocks(x: Float[Array, "N Hkv nq G q w"], like: Float[Array, "N H T d"]) -> Float[Array, "N H T w"]:
    """The inverse of `split_blocks`, for an array with the batch, heads and positions of `like`."""
    num, heads, length, _ = like.shape
    x = x.swapaxes(2, 3).reshape(num, heads, -1, x.shape[-1])
    return x[:, :, :length]


def over_rows(
    function: Callable[[Total, Arrays], tuple[Total, Results]], total: Total, arguments: Arrays, *, all_at_once: bool
) -> tuple[Total, Results]:
    """Run `function(total, arguments of a row) -> (total, results)` over the rows of arrays `[N, Hkv, ...]`.

    With `all_at_once` there is no loop over rows, so that the compiler can divide them over devices. Else as many are
    computed at once as keep the machine busy. These begin with a total of zero each, which are added up.
    """

    def at_once(total: Total, arguments: Arrays) -> tuple[Total, Results]:
        parts, results = jax.vmap(function, (None, 0))(jax.tree.map(jnp.zeros_like, total), arguments)
        return jax.tree.map(lambda old, new: old + new.sum(0), total, parts), results

    if all_at_once:
        parts, results = jax.vmap(at_once, (None, 0))(total, arguments)
        return jax.tree.map(lambda x: x.sum(0), parts), results  # `total` is zero
    shape = jax.tree.leaves(arguments)[0].shape[:2]
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arguments)
    size = rows_at_once(math.prod(shape))
    if size is None:
        total, results = lax.scan(function, total, rows)
    else:
        chunks = jax.tree.map(lambda x: x.reshape(-1, size, *x.shape[1:]), rows)
        total, results = lax.scan(at_once, total, chunks)
        results = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)
    return total, jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), results)


def rows_at_once(num_rows: int) -> int | None:
    """How many rows are computed at once: None for one after the other, where one keeps the machine busy."""
    if jax.default_backend() == "cpu":
        return None
    return max(n for n in range(1, MAX_AT_ONCE + 1) if num_rows % n == 0)
