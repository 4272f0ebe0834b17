"""Metrics: weighted by real elements, whatever the sizes of the batches."""

import numpy as np
import pytest

from transformer_jax.metrics import means, pad_batch, weighted_sums


def test_a_short_batch_is_padded_with_copies_that_count_as_invalid():
    batch = pad_batch((np.arange(3), np.arange(6).reshape(3, 2)), 5)
    np.testing.assert_array_equal(batch.valid, [True, True, True, False, False])
    np.testing.assert_array_equal(batch.data[0], [0, 1, 2, 2, 2])
    np.testing.assert_array_equal(batch.data[1], [[0, 1], [2, 3], [4, 5], [4, 5], [4, 5]])


def test_a_full_batch_stays_as_it_is():
    data = np.arange(5)
    batch = pad_batch(data, 5)
    assert batch.data is data
    assert batch.valid.all()


def test_sums_count_valid_rows_with_the_weights_of_their_elements():
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    weights = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    total, weight = weighted_sums({"loss": (values, weights)}, np.array([True, False]))["loss"]
    assert (float(total), float(weight)) == (3, 2)
    total, weight = weighted_sums({"loss": (values, 1.0)}, np.array([True, True]))["loss"]
    assert (float(total), float(weight)) == (21, 6)


def test_means_weigh_each_step_by_what_it_counted():
    steps = [{"accuracy": (9.0, 10.0)}, {"accuracy": (0.0, 2.0)}]
    assert means(steps) == {"accuracy": pytest.approx(9 / 12)}
