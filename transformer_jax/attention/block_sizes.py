"""Sizes of the blocks of blockwise attention, as measured on CPUs (`docs/attention.md`).

Large blocks make fast products; small ones follow the edge of a mask, and leave out more of what it forbids. So a mask
gets smaller blocks, of which neighbours are computed as one where they are allowed in full. `Causal()`, or another mask
that allows each block off the diagonal in full or not at all, gets large ones, and of those on the diagonal a staircase
is computed:

    ■ · · ·
    ■ ■ · ·
    ■ ■ ■ ·
    ■ ■ ■ ■
"""

import dataclasses

import numpy as np
from jax import Array

from transformer_jax.attention.masks.symbolic import AttentionMask
from transformer_jax.attention.score_block import BlockGrid

LARGE = 1024  # positions of a block at most
SMALL = 512
STAIR = 256  # keys of a stair at most
ALIGNMENT = 16  # positions: a multiple of the vectors of CPUs and of the tiles of accelerators


@dataclasses.dataclass(frozen=True)
class BlockSizes:
    """How the logits of a head are cut into blocks."""

    queries: int  # of a block
    keys: int
    num_joined: int = 1  # neighbouring blocks of keys that are computed as one where all of them are allowed in full
    num_stairs: int = 1  # into which the keys of a mixed block are cut; queries before a stair's first key leave it out

    @property
    def stair(self) -> int:
        """Keys of a stair; the last one may be narrower."""
        return -(-self.keys // self.num_stairs)

    def grid(self, batch: int | Array, num_queries: int, num_keys: int) -> BlockGrid:
        """The blocks of one batch element."""
        return BlockGrid(batch, num_queries, num_keys, self.queries, self.keys)


def choose_block_sizes(mask: AttentionMask | None, num_queries: int, num_keys: int) -> BlockSizes:
    """The sizes that measured fastest for a mask, a number of queries and a number of keys."""
    if mask is None:
        return BlockSizes(_even(num_queries, LARGE), _even(num_keys, LARGE))
    stairs = _stairs(num_queries)
    if num_queries == num_keys and stairs is not None and is_staircase(mask, stairs, num_queries):
        return stairs
    return BlockSizes(_even(num_queries, SMALL), _even(num_keys, SMALL), num_joined=2)


def is_staircase(mask: AttentionMask, sizes: BlockSizes, length: int) -> bool:
    """Whether the blocks fill the length, and it is known before the program runs that those off the diagonal are
    allowed in full or not at all, and that in those on it no query sees a stair above its own."""
    if length % sizes.keys or (sizes.keys < length and sizes.keys % sizes.stair):
        return False
    grid = sizes.grid(0, length, length)
    some, every = mask.bounds(grid)
    if isinstance(some, Array) or isinstance(every, Array):
        return False
    is_mixed = np.broadcast_to(some & np.logical_not(every), (grid.num_query_blocks, grid.num_key_blocks))
    stairs = BlockGrid(0, length, length, sizes.stair, sizes.stair)
    is_seen = np.broadcast_to(mask.bounds(stairs)[0], (stairs.num_query_blocks, stairs.num_key_blocks))
    return not (is_mixed & ~np.eye(len(is_mixed), dtype=bool)).any() and not np.triu(is_seen, 1).any()


def _stairs(length: int) -> BlockSizes | None:
    """Large blocks that fill a length, cut into stairs that fill them; None where there are none."""
    num_blocks = -(-length // LARGE)
    if length % num_blocks:
        return None
    size = length // num_blocks
    fewest = -(-size // STAIR)
    if num_blocks == 1:
        return BlockSizes(size, size, num_stairs=fewest)
    counts = [number for number in range(fewest, 2 * fewest + 1) if size % number == 0]
    return BlockSizes(size, size, num_stairs=counts[0]) if counts else None


def _even(length: int, longest: int) -> int:
    """Size of as few blocks as possible of at most `longest` positions, so that the last one is nearly full as well."""
    size = -(-length // -(-length // longest))
    return size if size == length else -(-size // ALIGNMENT) * ALIGNMENT
