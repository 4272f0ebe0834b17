"""Rows that each of several processes loads: together they are the whole batch."""

import pickle
from itertools import pairwise

import jax
import numpy as np
import pytest

from transformer_jax import make_loader
from transformer_jax.data.batch import pad_batch, stack_batches
from transformer_jax.data.local_rows import RowRange
from transformer_jax.tasks import ReverseDataset

SIZE, BATCH = 23, 6  # three batches, and a last one of five rows


def together(parts, rows_axis):
    return jax.tree.map(lambda *arrays: np.concatenate(arrays, rows_axis), *parts)


@pytest.mark.parametrize("bounds", [(0, 3, 6), (0, 2, 4, 6), (0, 6)])
def test_the_rows_of_all_processes_are_the_batches_of_one(bounds):
    loader = make_loader(ReverseDataset(10, 5, SIZE), BATCH, shuffle=True, seed=3)
    ranges = [RowRange(*pair, BATCH) for pair in pairwise(bounds)]
    whole = [stack_batches(samples, BATCH, 3) for samples in loader.epoch(1, 0, lambda: 3)]
    locals_ = [[part.stacked(3) for part in loader.of_rows(rows).epoch(1, 0, lambda: 3)] for rows in ranges]
    assert len(whole) == 2
    pickle.dumps(loader.of_rows(ranges[0]).dataset)  # as worker processes get it
    for (batches, count), *parts in zip(whole, *locals_, strict=True):
        assert [number for _, number in parts] == [count] * len(ranges)
        joined = together([part for part, _ in parts], 1)
        np.testing.assert_array_equal(joined.valid, batches.valid)
        for ours, expected in zip(jax.tree.leaves(joined), jax.tree.leaves(batches), strict=True):
            np.testing.assert_array_equal(ours[batches.valid], expected[batches.valid])


def test_a_batch_that_was_loaded_whole_is_cut_and_padded_as_one():
    samples = ReverseDataset(10, 5, 5).__getitems__(range(5)).stacked
    expected = pad_batch(samples, 8)
    parts = [RowRange(begin, begin + 4, 8).local_samples(samples).padded() for begin in (0, 4)]
    for ours, whole in zip(jax.tree.leaves(together(parts, 0)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, whole)
    lacking = RowRange(5, 8, 8).local_samples(samples).padded()  # the batch is too short for this process
    assert not lacking.valid.any()
    np.testing.assert_array_equal(lacking.inputs, samples[0][[4, 4, 4]])


def test_a_data_set_without_batches_loads_the_same_rows():
    asked = []

    class Slow(list):
        def __getitem__(self, index):
            asked.append(index)
            return np.array([index]), np.array(index)

    first = next(iter(make_loader(Slow(range(SIZE)), BATCH).of_rows(RowRange(2, 4, BATCH))))
    assert asked == [2, 3]
    np.testing.assert_array_equal(first.samples[1], [2, 3])
