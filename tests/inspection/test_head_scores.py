import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.inspection import attention_rollout, induction_scores, previous_token_scores


def test_a_head_that_looks_back_by_one_scores_1():
    weights = np.stack([np.eye(5, k=-1), np.full((5, 5), 0.2)])[None].astype(np.float32)
    np.testing.assert_allclose(previous_token_scores(weights), [1, 0.2], rtol=1e-6)


def test_a_head_that_attends_after_the_last_occurrence_scores_1():
    tokens = np.array([[3, 1, 4, 2, 0, 3, 1, 4, 2, 0]])
    weights = np.stack([np.eye(10, k=-4), np.eye(10, k=-5), np.full((10, 10), 0.1)])[None].astype(np.float32)
    # Of 10 queries 5 come again, and each has one key.
    np.testing.assert_allclose(induction_scores(weights, tokens), [1, 0, 0.1], rtol=1e-6)


def test_all_earlier_occurrences_count_and_none_after_the_query():
    weights = np.full((1, 1, 3, 3), 1 / 3, np.float32)
    # Query 1 has key 1; query 2 has keys 1 and 2.
    np.testing.assert_allclose(induction_scores(weights, np.array([[1, 1, 1]])), [(1 / 3 + 2 / 3) / 2], rtol=1e-6)
    assert np.isnan(induction_scores(weights, np.array([[0, 1, 2]]))).all()  # none is repeated


def test_bad_weights_and_tokens_are_named():
    with pytest.raises(InputError, match=r"weights has shape \(1, 2, 3, 2\); it must be \[B, H, T, T\]"):
        previous_token_scores(np.ones((1, 2, 3, 2), np.float32))
    with pytest.raises(InputError, match=r"tokens has shape \(1, 2\); it must be \(1, 3\), \[B, T\]"):
        induction_scores(np.ones((1, 2, 3, 3), np.float32), np.array([[0, 1]]))


# Two layers of two heads; their means are [[1, 0], [.5, .5]] and [[0, 1], [1, 0]].
FIRST = np.array([[[[1, 0], [1, 0]], [[1, 0], [0, 1]]]], np.float32)
SECOND = np.array([[[[0, 1], [1, 0]], [[0, 1], [1, 0]]]], np.float32)


def test_rollout_multiplies_layers_that_are_half_residual():
    # [[1, 0], [.25, .75]], and [[.5, .5], [.5, .5]] times it.
    expected = [[[[1, 0], [0.25, 0.75]]], [[[0.625, 0.375], [0.625, 0.375]]]]
    np.testing.assert_array_equal(attention_rollout([FIRST, SECOND]), expected)  # powers of 2 are exact


def test_weights_must_be_self_attention_of_each_layer():
    with pytest.raises(InputError, match=r"weights has shapes \[\(1, 2, 2, 2\), \(1, 1, 2, 2\)\]"):
        attention_rollout([FIRST, SECOND[:, :1]])
