"""LayerNorm: PyTorch's numbers, also where the mean is large, and Flax's names of the parameters."""

import jax
import numpy as np
import pytest
import torch

from transformer_jax.nn.norms import LayerNorm

B, T, D = 3, 5, 17


@pytest.mark.parametrize("mean", [0, 100, 1000])
def test_values_agree_with_pytorch_at_any_mean(mean):
    x = (mean + np.random.default_rng(0).normal(size=(B, T, D))).astype(np.float32)
    scale, bias = (np.random.default_rng(seed).normal(size=D).astype(np.float32) for seed in (1, 2))
    expected = torch.nn.functional.layer_norm(torch.tensor(x), (D,), torch.tensor(scale), torch.tensor(bias), 1e-6)
    output = LayerNorm().apply({"params": {"scale": scale, "bias": bias}}, x)
    # Both round the mean to float32, whose numbers around it are mean · 2⁻²³ apart, before they subtract it.
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-6 + 4 * mean * 2**-23)


def test_the_parameters_are_scale_and_bias():
    params = LayerNorm().init(jax.random.key(0), np.zeros((B, D), np.float32))["params"]
    assert {name: np.unique(leaf).tolist() for name, leaf in params.items()} == {"scale": [1], "bias": [0]}
