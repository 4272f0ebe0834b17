"""Dropout: the share that it drops, the mean that it keeps, and the independence of its draws."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled_models import drawn

from transformer_jax import TransformerEncoder
from transformer_jax.nn.layers import Dropout

ROWS, COLUMNS = 997, 1009  # about a million elements
X = np.ones((ROWS, COLUMNS), np.float32)


def is_kept(rate: float, key: jax.Array) -> np.ndarray:
    return np.asarray(Dropout(rate).apply({}, X, train=True, rngs={"dropout": key}))


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_the_keep_rate_is_as_asked_and_the_mean_unbiased(rate):
    output = is_kept(rate, jax.random.key(0))
    standard_error = np.sqrt(rate * (1 - rate) / X.size)
    assert abs((output != 0).mean() - (1 - rate)) < 4 * standard_error
    assert abs(output.mean() - 1) < 4 * standard_error / (1 - rate)
    values = np.unique(output)
    assert values[0] == 0
    np.testing.assert_allclose(values[1:], [1 / (1 - rate)], rtol=1e-6)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef((a != 0).ravel(), (b != 0).ravel())[0, 1])


def test_positions_steps_and_keys_are_uncorrelated():
    rate, base = 0.5, jax.random.key(3)
    mask = is_kept(rate, jax.random.fold_in(base, 7))
    bound = 5 / np.sqrt(X.size)  # five standard errors of a correlation of independent draws
    for shift in (1, 2, 4, 16, 64):
        assert abs(correlation(mask[:, shift:], mask[:, :-shift])) < bound * 1.1
        assert abs(correlation(mask[shift:], mask[:-shift])) < bound * 1.1
    assert abs(correlation(mask, is_kept(rate, jax.random.fold_in(base, 8)))) < bound
    assert abs(correlation(mask, is_kept(rate, jax.random.fold_in(jax.random.key(4), 7)))) < bound


def test_layers_draw_independently():
    """The masks of two layers show as zeros of their activations."""
    encoder = TransformerEncoder(2, 8, 2, 13, dropout_prob=0.5)
    x = np.random.default_rng(0).normal(size=(101, 7, 8)).astype(np.float32)

    @jax.jit
    def dropped(params, key):
        return encoder.apply(
            params, x, train=True, rngs={"dropout": key},
            capture_intermediates=lambda module, _: isinstance(module, Dropout) and module.name is not None,
        )[1]  # fmt: skip

    variables = jax.device_get(dropped(drawn(encoder, x), jax.random.key(1)))
    masks = [leaf != 0 for leaf in jax.tree.leaves(variables) if leaf.shape == (101, 7, 8)]
    assert len(masks) == 4  # two sub-layers in two layers
    for i in range(4):
        for j in range(i):
            assert abs(np.corrcoef(masks[i].ravel(), masks[j].ravel())[0, 1]) < 5 / np.sqrt(masks[i].size)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_type_stays(dtype):
    x = jnp.ones((5, 7), dtype)
    assert Dropout(0.5).apply({}, x, train=True, rngs={"dropout": jax.random.key(0)}).dtype == dtype


@pytest.mark.parametrize(("rate", "train"), [(0.5, False), (0.0, True)])
def test_nothing_is_dropped_outside_training_or_at_rate_0(rate, train):
    np.testing.assert_array_equal(Dropout(rate).apply({}, X, train=train), X)
