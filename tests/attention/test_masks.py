"""Masks: truth tables, ranks, and errors for impossible ones."""

import jax
import numpy as np
import pytest

from transformer_jax import causal_mask, combine_masks, expand_mask, padding_mask
from transformer_jax.attention.masks.symbolic import mask_array

B, H, T, S = 2, 3, 5, 7


def test_combined_masks_allow_what_all_of_them_allow():
    combined = combine_masks(causal_mask(3), None, padding_mask(np.array([[1, 1, 1], [1, 0, 0]])))
    np.testing.assert_array_equal(combined[:, 0], [np.tri(3), [[1, 0, 0]] * 3])
    assert combine_masks(None, None) is None


def test_in_a_traced_mask_every_integer_other_than_0_means_true():
    np.testing.assert_array_equal(jax.jit(expand_mask)(np.array([[0, 1, -(10**9)]]))[0, 0], [[False, True, True]])
    with pytest.raises(ValueError, match="mask holds 2"):
        jax.jit(lambda: expand_mask(np.array([[0, 2]])))()


@pytest.mark.parametrize(
    ("mask_shape", "logits_shape", "expected"),
    [
        ((T, S), (B, H, T, S), (1, 1, T, S)),
        ((B, T, S), (B, H, T, S), (B, 1, T, S)),
        ((T, S), (T, S), (T, S)),
        ((B, T, S), (B, T, S), (B, T, S)),
        ((B, 1, 1, S), (B, T, S), (B, 1, S)),
    ],
)
def test_a_mask_is_fitted_to_the_axes_that_the_logits_have(mask_shape, logits_shape, expected):
    mask = np.random.default_rng(1).integers(2, size=mask_shape)
    result = mask_array(mask, logits_shape)
    assert (result.shape, result.dtype) == (expected, bool)
    np.testing.assert_array_equal(result, mask.reshape(expected).astype(bool))


@pytest.mark.parametrize(
    ("mask_shape", "logits_shape"),
    [
        ((B, S), (B, H, T, S)),  # a validity vector
        ((H, T, S), (B, H, T, S)),
        ((B, H + 1, T, S), (B, H, T, S)),
        ((B, H, T, S), (B, T, S)),
    ],
)
def test_sizes_that_do_not_fit_are_an_error_that_names_both_shapes_and_padding_mask(mask_shape, logits_shape):
    with pytest.raises(ValueError, match=r"padding_mask") as error:
        mask_array(np.ones(mask_shape, bool), logits_shape)
    assert str(mask_shape) in str(error.value)
    assert str(logits_shape) in str(error.value)
