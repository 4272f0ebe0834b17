"""Metrics: weighted by real elements, whatever the sizes of the batches."""

import numpy as np
import pytest

from transformer_jax.training.metrics import means, pad_batch, stack_batches, weighted_sums


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


def test_batches_behind_each_other_are_stacked_and_filled_up_with_invalid_ones():
    batches, count = stack_batches((np.arange(7), np.arange(14).reshape(7, 2)), batch_size=3, num_batches=5)
    assert count == 3
    np.testing.assert_array_equal(batches.data[0], [[0, 1, 2], [3, 4, 5], [6, 6, 6], [6, 6, 6], [6, 6, 6]])
    assert batches.data[1].shape == (5, 3, 2)
    np.testing.assert_array_equal(batches.data[1][1], [[6, 7], [8, 9], [10, 11]])
    np.testing.assert_array_equal(batches.valid.sum(1), [3, 3, 1, 0, 0])
    assert batches.valid[2].tolist() == [True, False, False]


@pytest.mark.parametrize(("rows", "count"), [(3, 1), (4, 2), (6, 2)])
def test_a_batch_that_is_begun_counts_among_the_real_ones(rows, count):
    assert stack_batches(np.arange(rows), batch_size=3, num_batches=2)[1] == count


def test_sums_count_valid_rows_with_the_weights_of_their_elements():
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    weights = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    total, weight = weighted_sums({"loss": (values, weights)}, np.array([True, False]))["loss"]
    assert (float(total), float(weight)) == (3, 2)
    total, weight = weighted_sums({"loss": (values, 1.0)}, np.array([True, True]))["loss"]
    assert (float(total), float(weight)) == (21, 6)


def test_what_weighs_nothing_may_be_infinite_or_no_number():
    values = np.array([[1.0, np.inf, 3.0], [np.nan, -np.inf, np.nan]])
    weights = np.array([[1.0, 0.0, 0.5], [1.0, 1.0, 1.0]])
    sums = weighted_sums({"loss": (values, weights)}, np.array([True, False]))
    assert means([sums]) == {"loss": pytest.approx((1 + 3 * 0.5) / 1.5)}


def test_weights_of_another_rank_are_an_error_that_names_both_shapes():
    with pytest.raises(ValueError, match=r"weights of shape \(2,\) for values of shape \(2, 3\)"):
        weighted_sums({"loss": (np.ones((2, 3)), np.ones(2))}, np.array([True, True]))


def test_means_weigh_each_step_by_what_it_counted():
    steps = [{"accuracy": (9.0, 10.0)}, {"accuracy": (0.0, 2.0)}]
    assert means(steps) == {"accuracy": pytest.approx(9 / 12)}
