"""Length buckets for pairs of sequences: few shapes with little padding."""

from itertools import combinations

import numpy as np

from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape


def positions(sources, targets, shapes):
    """Total number of positions of all pairs, with padding."""
    return sum(sum(shapes[index]) for index in smallest_shape(sources, targets, shapes))


def test_shapes_hold_everything_with_least_padding():
    sources, targets = np.array([2, 2, 2, 11, 13]), np.array([3, 3, 3, 5, 7])
    assert choose_shapes(sources, targets, 1) == [Shape(13, 7)]
    assert choose_shapes(sources, targets, 2) == [Shape(2, 3), Shape(13, 7)]  # 55 positions; 84 with (11, 5)
    assert choose_shapes(sources, targets, 3) == [Shape(2, 3), Shape(11, 5), Shape(13, 7)]
    assert choose_shapes(np.full(7, 5), np.full(7, 3)) == [Shape(5, 3)]


def test_no_other_boundaries_pad_less():
    rng = np.random.default_rng(3)
    sources, targets = rng.integers(1, 23, 101), rng.integers(1, 19, 101)
    sizes = np.maximum(sources, targets)
    best = min(
        positions(
            sources,
            targets,
            [Shape(sources[sizes <= b].max(), targets[sizes <= b].max()) for b in (*choice, sizes.max())],
        )
        for choice in combinations(np.unique(sizes)[:-1], 3)
    )
    shapes = choose_shapes(sources, targets)
    assert len(shapes) == 4
    assert positions(sources, targets, shapes) == best


def test_a_pair_goes_where_both_its_texts_fit():
    shapes = [Shape(5, 3), Shape(11, 7)]
    assert smallest_shape(np.array([5, 5, 6]), np.array([3, 4, 3]), shapes).tolist() == [0, 1, 1]
