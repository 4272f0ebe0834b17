"""Batches: short batches are padded with invalid rows, consecutive batches are stacked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import InputError
from transformer_jax.data.batch import ArrayDataset, pad_batch, stack_batches


def samples(rows: int):
    """Inputs `[B 2]` in a dictionary, and targets `[B]`."""
    return {"numbers": np.arange(2 * rows).reshape(rows, 2)}, 10 * np.arange(rows)


def test_a_short_batch_is_padded_with_copies_of_its_last_row_that_count_as_invalid():
    batch = pad_batch(jax.tree.map(jnp.asarray, samples(3)), 5)
    assert isinstance(batch.targets, np.ndarray)
    assert batch.inputs["numbers"].tolist() == [[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]]
    assert batch.targets.tolist() == [0, 10, 20, 20, 20]
    assert batch.valid.tolist() == [True, True, True, False, False]


@pytest.mark.parametrize("batch_size", [3, 5])
def test_a_batch_of_the_size_or_larger_is_not_changed(batch_size):
    inputs, targets = samples(5)
    batch = pad_batch((inputs, targets), batch_size)
    assert batch.inputs is inputs
    assert batch.targets is targets
    assert batch.valid.tolist() == [True] * 5
    assert pad_batch((inputs, None), batch_size).targets is None


def test_consecutive_batches_are_stacked_and_filled_up_with_invalid_ones():
    batches, count = stack_batches(samples(7), batch_size=3, num_batches=5)
    assert count == 3
    assert batches.targets.tolist() == [[0, 10, 20], [30, 40, 50], [60] * 3, [60] * 3, [60] * 3]
    assert batches.inputs["numbers"].shape == (5, 3, 2)
    assert batches.inputs["numbers"][1].tolist() == [[6, 7], [8, 9], [10, 11]]
    assert batches.valid.sum(1).tolist() == [3, 3, 1, 0, 0]
    assert batches.valid[2].tolist() == [True, False, False]
    assert [stack_batches(samples(rows), 3, 2)[1] for rows in (3, 4, 6)] == [1, 2, 2]


def test_a_data_set_of_arrays_gives_their_rows():
    dataset = ArrayDataset(*samples(5))
    assert len(dataset) == 5
    inputs, targets = dataset.__getitems__([3, 0]).stacked
    np.testing.assert_array_equal(inputs["numbers"], [[6, 7], [0, 1]])
    np.testing.assert_array_equal(targets, [30, 0])
    with pytest.raises(InputError, match="the same number of rows"):
        ArrayDataset(np.zeros(3), np.zeros(5))
