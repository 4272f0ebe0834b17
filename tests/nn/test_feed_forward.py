"""Gated feed-forward networks: the formulas of Shazeer 2020, and which units dropout drops."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from scipy.special import expit

from transformer_jax import GatedFeedForward

B, T, D, F = 2, 3, 5, 7
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(B, T, D)).astype(np.float32)


def drawn(module: nn.Module) -> dict:
    shapes = jax.eval_shape(lambda: module.init(jax.random.key(0), X, train=False))
    return jax.tree.map(lambda leaf: DRAWS.normal(size=leaf.shape).astype(np.float32), shapes)


def swish(x: np.ndarray) -> np.ndarray:
    return x * expit(x)


def gelu(x: np.ndarray) -> np.ndarray:
    """Hendrycks and Gimpel 2016, section 2: the approximation by tanh."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("activation", "formula"), [(nn.silu, swish), (nn.gelu, gelu), (nn.sigmoid, expit)])
def test_the_gate_multiplies_the_hidden_units(activation, formula):
    module = GatedFeedForward(F, activation=activation)
    variables = drawn(module)
    gate, expand, contract = (variables["params"][name] for name in ("gate", "expand", "contract"))
    wide = X.astype(np.float64)
    hidden = formula(wide @ gate["kernel"] + gate["bias"]) * (wide @ expand["kernel"] + expand["bias"])
    expected = hidden @ contract["kernel"] + contract["bias"]
    # Sums of 5 and of 7 products in float32, of values up to 50.
    np.testing.assert_allclose(module.apply(variables, X, train=False), expected, rtol=1e-4, atol=1e-4)


def test_dropout_drops_products_of_both():
    module = GatedFeedForward(1000, dropout_prob=0.25)
    x = np.ones((1, 1, 1), np.float32)
    ones = jax.tree.map(np.ones_like, module.init(jax.random.key(0), x, train=False))
    ones["params"]["contract"]["kernel"] = np.eye(1000, 1, dtype=np.float32) * 0 + 1
    output = module.apply(ones, x, train=True, rngs={"dropout": jax.random.key(1)})
    unit = 2 * swish(np.float64(2))  # (x + 1) · swish(x + 1), at x = 1
    kept = (float(output[0, 0, 0]) - 1) * 0.75 / unit
    assert kept == pytest.approx(round(kept), abs=0.02)
    assert 690 < kept < 810  # 4.4 standard deviations around 750
