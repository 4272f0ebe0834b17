"""Which logits blockwise attention computes, and with which sizes of blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import ArrayMask, Causal, Padding, Prefix, Segments, Window
from transformer_jax.attention.block_layout import BlockSizes, choose_block_sizes, list_blocks
from transformer_jax.attention.score_block import BlockGrid

NONE, MASKED, FULL = 0, 1, 2  # a logit is not computed, with the mask, without it


def computed(mask, sizes: BlockSizes, num_queries: int, num_keys: int) -> np.ndarray:
    """How each logit [T, S] is computed; none is computed twice."""
    grid = BlockGrid(0, num_queries, num_keys, sizes.queries, sizes.keys)
    num_blocks = len(grid.queries()[0])
    shape = num_blocks * sizes.queries, len(grid.keys()[0]) * sizes.keys

    def of_queries(number, counts):
        def step(part, counts):
            queries = np.arange(part.first, grid.query_size)[:, None] + number * grid.query_size
            keys = part.keys.start + np.arange(part.keys.size)
            return counts.at[queries, keys].add(MASKED if part.is_mixed else FULL + 8)

        return list_blocks(mask, grid, sizes).visit(number, step, counts)

    run = jax.jit(lambda: jax.lax.fori_loop(0, num_blocks, of_queries, jnp.zeros(shape, int)))
    counts = np.asarray(run())[:num_queries, :num_keys]
    assert np.isin(counts, [NONE, MASKED, FULL + 8]).all()
    return np.where(counts > FULL, FULL, counts)


@pytest.mark.parametrize(
    ("mask", "num_computed", "num_masked"),
    [
        (None, 16, 0),
        (Causal(), 10, 4),
        (Causal(-8), 6, 3),
        (Window(8, 0), 7, 7),  # the block of the query and the one before: linear
        (Causal() & Window(8, None), 7, 7),
        (Prefix(9), 8, 4),
        (Causal() | Prefix(8), 10, 3),
        (~Causal(-1), 10, 4),
        (Padding(np.arange(32)[None] < 12), 8, 4),
        (Segments(np.arange(32)[None] // 16, np.arange(32)[None] // 16), 8, 8),
    ],
)
def test_blocks_that_a_mask_empties_are_not_computed(mask, num_computed, num_masked):
    found = computed(mask, BlockSizes(8, 8), 32, 32)
    assert ((found > NONE).sum(), (found == MASKED).sum()) == (64 * num_computed, 64 * num_masked)


def test_a_staircase_leaves_out_the_most_of_the_blocks_on_the_diagonal():
    found = computed(Causal(), BlockSizes(8, 8, num_stairs=4), 24, 24)
    position = np.arange(24)
    np.testing.assert_array_equal(found > NONE, position[:, None] // 2 >= position // 2)
    np.testing.assert_array_equal(found == MASKED, (found > NONE) & (position[:, None] // 8 == position // 8))


@pytest.mark.parametrize(
    ("mask", "shape", "sizes"),
    [
        (None, (1100, 3), BlockSizes(560, 3)),  # two blocks that are nearly full, and not one full and one empty
        (Causal(), (1024, 1024), BlockSizes(1024, 1024, num_stairs=4)),
        (Causal() & Window(None, 3), (600, 600), BlockSizes(600, 600, num_stairs=3)),
        (Causal(), (2000, 2000), BlockSizes(1000, 1000, num_stairs=4)),
        (Causal(), (1100, 1100), BlockSizes(550, 550, num_stairs=3)),
        (Causal(), (1101, 1101), BlockSizes(368, 368)),  # no two blocks fill it
        (Causal(1), (1024, 1024), BlockSizes(512, 512)),  # a query sees the key after it
        (Causal(jnp.int32(0)), (1024, 1024), BlockSizes(512, 512)),  # not known yet
        (Window(256, 0), (1000, 1000), BlockSizes(1000, 1000, num_stairs=4)),
        (Window(256, 0), (2048, 2048), BlockSizes(512, 512)),  # cuts blocks off the diagonal
        (ArrayMask(np.ones((600, 600), bool)), (1, 600), BlockSizes(1, 304)),
    ],
    ids=str,
)
def test_sizes_of_blocks_follow_the_mask(mask, shape, sizes):
    assert choose_block_sizes(mask, *shape) == sizes
