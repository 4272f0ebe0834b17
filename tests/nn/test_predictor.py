"""TransformerPredictor: its maps, and where it drops."""

import functools

import jax
import numpy as np
import pytest
from compiled_models import compiled, drawn

from transformer_jax import TransformerPredictor, capture, padding_mask

B, T, FEATURES, D, C, H, L = 2, 5, 7, 6, 3, 2, 2
MODEL = TransformerPredictor(D, C, H, L)
X = np.random.default_rng(0).normal(size=(B, T, FEATURES)).astype(np.float32)
VALID = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)


@pytest.fixture(scope="module")
def params():
    return drawn(MODEL, X)


def test_the_maps_are_those_of_the_forward_pass_mask_and_all(params):
    mask = np.asarray(padding_mask(VALID))
    maps_of = functools.partial(MODEL.apply, method="get_attention_maps")

    @jax.jit
    def run(params, *inputs):
        without = maps_of(params, *inputs, add_positional_encoding=False)
        _, captured = capture(MODEL, params, *inputs, names=["encoder.layers.?.attention.weights"])
        return maps_of(params, *inputs), without, list(captured.values())

    maps, without, from_the_pass = run(params, X, mask)
    assert [attention.shape for attention in maps] == [(B, H, T, T)] * L
    for attention, expected in zip(maps, from_the_pass, strict=True):
        np.testing.assert_allclose(attention, expected, atol=1e-6)
        np.testing.assert_array_equal(attention[0, :, :, 3:], 0)
    assert np.abs(without[0] - maps[0]).max() > 1e-3


@pytest.mark.slow
def test_no_key_is_needed_outside_training_also_not_for_the_maps(params):
    model = TransformerPredictor(D, C, H, L, input_dropout_prob=0.5)
    np.testing.assert_array_equal(compiled(model)(params, X), compiled(MODEL)(params, X))
    maps = jax.eval_shape(functools.partial(model.apply, method="get_attention_maps"), params, X)
    assert len(maps) == L
    dropped = compiled(model, train=True)(params, X, rngs={"dropout": jax.random.key(1)})
    assert np.abs(dropped - compiled(MODEL)(params, X)).max() > 1e-2


def test_the_output_network_drops_a_quarter_and_scales_the_rest():
    """All parameters are zero except those that make the output norm return ones and pass these on as logits."""
    model = TransformerPredictor(D, D, H, 1, dropout_prob=0.25)
    x = np.zeros((101, T, FEATURES), np.float32)
    params = jax.tree.map(np.zeros_like, drawn(model, x)["params"])
    params["output_norm"]["bias"] = np.ones(D, np.float32)
    params["output_layer"]["kernel"] = np.eye(D, dtype=np.float32)
    logits = compiled(model, train=True)({"params": params}, x, rngs={"dropout": jax.random.key(1)})
    kept = logits != 0
    np.testing.assert_allclose(logits[kept], 4 / 3, rtol=1e-6)
    # 3 030 numbers: the standard deviation of the share is 0.008.
    assert kept.mean() == pytest.approx(0.75, abs=0.03)
