"""Norms: PyTorch's numbers, even with a large mean, the papers' formulas, and Flax's parameter names."""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import needs_float16

from transformer_jax.nn.layer_kinds import RMSNorm
from transformer_jax.nn.layers import LayerNorm

B, T, D = 3, 5, 17


@pytest.mark.parametrize("mean", [0, 100, 1000])
def test_values_agree_with_pytorch_at_any_mean(mean):
    x = (mean + np.random.default_rng(0).normal(size=(B, T, D))).astype(np.float32)
    scale, bias = (np.random.default_rng(seed).normal(size=D).astype(np.float32) for seed in (1, 2))
    expected = torch.nn.functional.layer_norm(torch.tensor(x), (D,), torch.tensor(scale), torch.tensor(bias), 1e-6)
    output = LayerNorm().apply({"params": {"scale": scale, "bias": bias}}, x)
    # Both round the mean to float32, whose numbers around it are mean · 2⁻²³ apart, before they subtract it.
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-6 + 4 * mean * 2**-23)


@pytest.mark.parametrize("epsilon", [1e-6, 0.25])
def test_rms_norm_divides_by_the_root_mean_square_and_keeps_the_mean(epsilon):
    x = (3 + np.random.default_rng(0).normal(size=(B, T, D))).astype(np.float32)
    scale = np.random.default_rng(1).normal(size=D).astype(np.float32)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + epsilon) * scale  # equation 4
    output = RMSNorm(epsilon=epsilon).apply({"params": {"scale": scale}}, x)
    np.testing.assert_allclose(output, expected, rtol=1e-5)  # a sum of 17 squares, in float32
    assert np.abs(np.asarray(RMSNorm().apply({"params": {"scale": np.ones(D)}}, x)).mean()) > 0.5


@needs_float16
def test_the_root_mean_square_of_large_half_precision_numbers_does_not_overflow():
    x = jnp.full((B, D), 1000, jnp.float16)  # whose squares float16 lacks
    params = {"params": {"scale": jnp.ones(D, jnp.float16)}}
    np.testing.assert_allclose(RMSNorm().apply(params, x), 1, rtol=1e-3)
