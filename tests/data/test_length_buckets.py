"""Few shapes, little padding, and batches of like length whose order is a function of (seed, epoch)."""

from itertools import chain, combinations

import numpy as np
import pytest

from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape
from transformer_jax.data.loader import EpochBatchSampler


def positions(sources, targets, shapes):
    """Of all pairs, padded."""
    return sum(sum(shapes[index]) for index in smallest_shape(sources, targets, shapes))


def test_shapes_hold_everything_with_least_padding():
    sources, targets = np.array([2, 2, 2, 11, 13]), np.array([3, 3, 3, 5, 7])
    assert choose_shapes(sources, targets, 1) == [Shape(13, 7)]
    assert choose_shapes(sources, targets, 2) == [Shape(2, 3), Shape(13, 7)]  # 55 positions; 84 with (11, 5)
    assert choose_shapes(sources, targets, 3) == [Shape(2, 3), Shape(11, 5), Shape(13, 7)]
    assert smallest_shape(sources, targets, [Shape(2, 3), Shape(13, 7)]).tolist() == [0, 0, 0, 1, 1]


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


def test_equal_lengths_need_one_shape():
    assert choose_shapes(np.full(7, 5), np.full(7, 3)) == [Shape(5, 3)]


def test_a_pair_goes_where_both_its_texts_fit():
    shapes = [Shape(5, 3), Shape(11, 7)]
    assert smallest_shape(np.array([5, 5, 6]), np.array([3, 4, 3]), shapes).tolist() == [0, 1, 1]
    with pytest.raises(ValueError, match=r"a pair has lengths 2 and 8; the largest shape is \(11, 7\)"):
        smallest_shape(np.array([5, 2]), np.array([3, 8]), shapes)


def test_no_pairs_have_no_shapes():
    with pytest.raises(ValueError, match="there are no pairs"):
        choose_shapes(np.array([], int), np.array([], int))


GROUPS = np.random.default_rng(5).integers(3, size=101)


def sampler(epoch=0, *, shuffle=True, drop_last=False, seed=0, groups=GROUPS):
    sampler = EpochBatchSampler(101, 7, shuffle=shuffle, drop_last=drop_last, seed=seed, groups=groups)
    sampler.set_epoch(epoch)
    return sampler


def test_a_batch_holds_one_group_but_where_two_meet():
    batches = list(sampler())
    assert len(batches) == len(sampler()) == 15
    assert sorted(chain(*batches)) == list(range(101))
    assert sorted(map(len, batches)) == [3] + [7] * 14
    assert sum(len(set(GROUPS[batch])) > 1 for batch in batches) <= 2


def test_groups_come_in_random_order():
    lowest = [GROUPS[batch].min() for batch in sampler()]
    assert lowest != sorted(lowest)
    assert [GROUPS[batch].min() for batch in sampler(shuffle=False)] == sorted(lowest)


def test_order_is_a_function_of_seed_and_epoch():
    assert list(sampler(3)) == list(sampler(3))
    assert len({str(list(sampler(epoch, seed=seed))) for epoch in (0, 1) for seed in (0, 1)}) == 4


def test_without_shuffling_the_order_within_a_group_is_kept():
    order = list(chain(*sampler(shuffle=False)))
    assert order == sorted(range(101), key=lambda index: GROUPS[index])
    assert order == list(chain(*sampler(1, shuffle=False)))


def test_dropping_the_last_batch_leaves_full_ones():
    batches = list(sampler(drop_last=True))
    assert [len(batch) for batch in batches] == [7] * 14


def test_groups_must_name_each_sample():
    with pytest.raises(ValueError, match="groups has 3 numbers; there are 101 samples"):
        sampler(groups=np.array([0, 1, 2]))
