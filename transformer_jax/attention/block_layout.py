"""Order in which blockwise attention computes the logits: rows, and blocks within each row.

A row is one batch element and one head of keys and values, with the group of query heads that share it.

Blocks that a mask forbids entirely are skipped. The block sizes were the fastest ones measured on CPUs
(`docs/attention.md`): large blocks make matrix products fast; small blocks follow the edge of a mask more closely, so
that fewer forbidden logits are computed. Therefore blocks are smaller with a mask. `Causal()` gets large blocks if they
fill the sequence evenly, since it allows each block off the diagonal entirely or not at all; so does a causal window if
one block holds the whole sequence. Only a staircase of each block on the diagonal is computed:

    ■ · · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Int

from transformer_jax.attention.masks.symbolic import AttentionMask, reach
from transformer_jax.attention.score_block import BlockFlags, BlockGrid, Range
from transformer_jax.trees import Arrays

LARGE = 1024  # maximum positions per block
SMALL = 512
STAIR = 256  # maximum keys per stair
MAX_AT_ONCE = 64  # rows computed at once on accelerators
# positions: a multiple of the vector width of CPUs and of the tile size of accelerators
ALIGNMENT = 16

Carry = TypeVar("Carry")
Total = TypeVar("Total")
Results = TypeVar("Results")
Known = np.ndarray | Array  # NumPy if known at tracing time


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """How the logits of a head are cut into blocks."""

    queries: int  # per block
    keys: int
    # parts of the keys of a mixed block; queries before the first key of a stair skip the stair
    num_stairs: int = 1

    @property
    def stair(self) -> int:
        """Keys per stair; the last stair may be narrower."""
        return -(-self.keys // self.num_stairs)


def choose_block_sizes(mask: AttentionMask | None, num_queries: int, num_keys: int) -> BlockSizes:
    """Return the sizes that were fastest in measurements for a mask and numbers of queries and keys."""
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
    """Return the size of the fewest blocks of at most `longest` positions, such that the last one is nearly full."""
    size = -(-length // -(-length // longest))
    return size if size == length else -(-size // ALIGNMENT) * ALIGNMENT


class Part(NamedTuple):
    """Part of the logits of a query block that is computed in one step."""

    first: int  # first query within the block; earlier queries see none of the keys
    keys: Range
    is_mixed: bool  # whether the mask may forbid some of the logits


class KeyBlocks(NamedTuple):
    """List of key blocks for each query block."""

    order: Int[Known, "nq nk"]  # indices of the key blocks, listed ones first
    num_listed: Int[Known, " nq"]  # number of listed blocks


class BlockLists(NamedTuple):
    """Key blocks of each query block: blocks that the mask allows entirely, and blocks that it may allow in part."""

    full: KeyBlocks
    mixed: KeyBlocks
    sizes: BlockSizes

    def visit(
        self, query_block: Array, step: Callable[[Part, Carry], Carry], carry: Carry
    ) -> Carry:
        """Run `step` on all parts of the key blocks of a query block."""

        def visit_block(blocks: KeyBlocks, is_mixed: bool, number: Array, carry: Carry) -> Carry:
            """Run `step` on a full block at once, and on each stair of a mixed block."""
            size = self.sizes.keys
            stair = self.sizes.stair if is_mixed else size
            first_key = jnp.asarray(blocks.order)[query_block, number] * size
            for offset in range(0, size, stair):
                keys = Range(first_key + offset, min(stair, size - offset))
                carry = step(Part(offset, keys, is_mixed), carry)
            return carry

        for blocks, is_mixed in ((self.full, False), (self.mixed, True)):
            if isinstance(blocks.num_listed, np.ndarray) and not blocks.num_listed.any():
                continue  # keeps the step out of the compiled program
            num_listed = jnp.asarray(blocks.num_listed)[query_block]
            carry = lax.fori_loop(0, num_listed, partial(visit_block, blocks, is_mixed), carry)
        return carry


def list_blocks(mask: AttentionMask | None, grid: BlockGrid, sizes: BlockSizes) -> BlockLists:
    """List the blocks to compute for a grid with these block sizes.

    The lists are NumPy arrays if they are known at tracing time. Otherwise the program computes them, from arrays no
    longer than the sequences.
    """
    first_query = grid.queries()[0]
    first_key = grid.keys()[0]
    shape = len(first_query), len(first_key)
    allows_some, allows_all = (True, True) if mask is None else mask.bounds(grid)  # [nq nk]
    # the last one may end beyond the keys
    allows_all = allows_all & allows_some & (first_key + grid.key_size <= grid.num_keys)
    # XLA moves the products of a single key block out of the loop, so that they run whether or not it is listed. A
    # single block is therefore listed as mixed for all queries.
    is_full = not isinstance(allows_all, Array) and allows_all.all()
    if shape[1] == 1 and not is_full:
        allows_some = True
        allows_all = np.zeros(shape, bool)
    full = _listed(allows_all, shape)
    mixed = _listed(allows_some & ~allows_all, shape)
    return BlockLists(full, mixed, sizes)


def _listed(flags: BlockFlags, shape: tuple[int, int]) -> KeyBlocks:
    numpy = jnp if isinstance(flags, Array) else np
    blocks: Bool[Known, "nq nk"] = numpy.broadcast_to(flags, shape)
    return KeyBlocks(numpy.argsort(~blocks, axis=1, stable=True), blocks.sum(1))


def split_blocks(
    x: Float[Array, "N H T *w"], group: int, size: int, fill: float = 0.0
) -> Float[Array, "N Hkv nq G q *w"]:
    """Split the positions of each head into blocks, the last one filled up with a number."""
    x = fill_blocks(x, size, fill)
    num, _, length, *rest = x.shape
    return x.reshape(num, -1, group, length // size, size, *rest).swapaxes(2, 3)


def fill_blocks(
    x: Float[Array, "N H T *w"], size: int, fill: float = 0.0
) -> Float[Array, "N H padded *w"]:
    """Pad the positions with a number to a multiple of a size."""
    padding = [(0, 0)] * x.ndim
    padding[2] = 0, -x.shape[2] % size
    return jnp.pad(x, padding, constant_values=fill)


def join_blocks(
    x: Float[Array, "N Hkv nq G q *w"], like: Float[Array, "N H T d"]
) -> Float[Array, "N H T *w"]:
    """Invert `split_blocks`, for an array with the batch, heads and positions of `like`."""
    num, heads, length, _ = like.shape
    x = x.swapaxes(2, 3).reshape(num, heads, -1, *x.shape[5:])
    return x[:, :, :length]


def over_rows(
    function: Callable[[Total, Arrays], tuple[Total, Results]],
    total: Total,
    arguments: Arrays,
    *,
    all_at_once: bool,
) -> tuple[Total, Results]:
    """Run `function(total, arguments of a row) -> (total, results)` over the rows of arrays `[N, Hkv, ...]`.

    With `all_at_once` there is no loop over rows, so that the compiler can partition them over devices. Otherwise
    `rows_at_once` rows run together; each of these starts from a total of zero, and the totals are summed.
    """

    def at_once(total: Total, arguments: Arrays) -> tuple[Total, Results]:
        zeros = jax.tree.map(jnp.zeros_like, total)
        totals, results = jax.vmap(function, (None, 0))(zeros, arguments)
        return jax.tree.map(lambda x, of_rows: x + of_rows.sum(0), total, totals), results

    if all_at_once:
        totals, results = jax.vmap(at_once, (None, 0))(total, arguments)
        return jax.tree.map(lambda x: x.sum(0), totals), results  # `total` is zero
    shape = jax.tree.leaves(arguments)[0].shape[:2]  # N, Hkv
    size = rows_at_once(math.prod(shape))
    step = function
    row_axes = [-1]
    if size is not None:
        step = at_once
        row_axes = [-1, size]
    rows = jax.tree.map(lambda x: x.reshape(*row_axes, *x.shape[2:]), arguments)
    total, results = lax.scan(step, total, rows)
    return total, jax.tree.map(lambda x: x.reshape(*shape, *x.shape[len(row_axes) :]), results)


def rows_at_once(num_rows: int) -> int | None:
    """Return the number of rows computed at once; None on CPUs, where one row at a time keeps all cores busy."""
    if jax.default_backend() == "cpu":
        return None
    return max(n for n in range(1, MAX_AT_ONCE + 1) if num_rows % n == 0)
