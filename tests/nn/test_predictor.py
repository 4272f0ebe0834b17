"""TransformerPredictor: its parts, its shapes, its maps."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from transformer_jax import TransformerEncoder, TransformerPredictor, padding_mask

B, T, FEATURES, D, C, H, L = 2, 5, 7, 6, 3, 2, 2
MODEL = TransformerPredictor(D, C, H, L)
X = np.random.default_rng(0).normal(size=(B, T, FEATURES)).astype(np.float32)
VALID = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)


@pytest.fixture(scope="module")
def params():
    return MODEL.init(jax.random.key(0), X)


def test_one_prediction_for_each_element(params):
    assert MODEL.apply(params, X).shape == (B, T, C)


def test_the_feed_forward_is_twice_as_wide_as_the_model_and_the_positions_are_no_parameters(params):
    shapes = jax.tree.map(np.shape, params["params"])
    block = shapes["encoder"]["layers_0"]
    assert block["feed_forward"]["expand"]["kernel"] == (D, 2 * D)
    assert shapes["input_layer"]["kernel"] == (FEATURES, D)
    assert shapes["output_layer"]["kernel"] == (D, C)
    # Dense: in · out + out. Block: 4 projections, 2 feed-forward layers, 2 norms. Specification, section 5.
    expected = (FEATURES + 1) * D + L * (4 * (D + 1) * D + (D + 1) * 2 * D + (2 * D + 1) * D + 2 * 2 * D)
    expected += (D + 1) * D + 2 * D + (D + 1) * C
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == expected


def test_the_output_network_is_dense_norm_relu_dense(params):
    bound = MODEL.bind(params)
    h = bound.encoder(bound.positional_encoding(bound.input_layer(X)))
    expected = bound.output_layer(nn.relu(bound.output_norm(bound.output_hidden(h))))
    np.testing.assert_allclose(MODEL.apply(params, X), expected, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"norm_first": True}, {"activation": nn.gelu}, {"layer_norm_epsilon": 0.5}],
    ids=lambda options: "".join(options),
)
def test_its_options_are_those_of_the_encoder_and_of_the_output_norm(options):
    model = TransformerPredictor(D, C, H, L, **options)
    params = model.init(jax.random.key(0), X)
    parts, bound = params["params"], model.bind(params)
    h = bound.positional_encoding(bound.input_layer(X))
    h = TransformerEncoder(L, D, H, 2 * D, **options).apply({"params": parts["encoder"]}, h)
    norm = nn.LayerNorm(epsilon=options.get("layer_norm_epsilon", 1e-6))
    h = nn.relu(norm.apply({"params": parts["output_norm"]}, bound.output_hidden(h)))
    logits = model.apply(params, X)
    np.testing.assert_allclose(logits, bound.output_layer(h), atol=1e-6)
    assert np.abs(logits - MODEL.apply(params, X)).max() > 1e-3


def test_positions_break_the_permutation_equivariance(params):
    order = np.array([3, 1, 4, 0, 2])
    without = MODEL.apply(params, X, None, False)
    np.testing.assert_allclose(MODEL.apply(params, X[:, order], None, False), without[:, order], atol=1e-5)
    assert np.abs(MODEL.apply(params, X[:, order]) - MODEL.apply(params, X)[:, order]).max() > 1e-2


def test_the_maps_are_those_of_the_forward_pass_mask_and_all(params):
    mask = padding_mask(VALID)
    maps = MODEL.apply(params, X, mask, method=MODEL.get_attention_maps)
    logits, from_the_pass = MODEL.apply(params, X, mask, return_attention=True)
    assert [attention.shape for attention in maps] == [(B, H, T, T)] * L
    np.testing.assert_array_equal(logits, MODEL.apply(params, X, mask))
    for attention, expected in zip(maps, from_the_pass, strict=True):
        np.testing.assert_array_equal(attention, expected)
        np.testing.assert_array_equal(attention[0, :, :, 3:], 0)
    without = MODEL.apply(params, X, mask, False, method=MODEL.get_attention_maps)
    assert np.abs(without[0] - maps[0]).max() > 1e-3


@pytest.mark.parametrize("option", ["dropout_prob", "input_dropout_prob"])
def test_no_key_is_needed_outside_training_also_not_for_the_maps(params, option):
    model = TransformerPredictor(D, C, H, L, **{option: 0.5})
    np.testing.assert_array_equal(model.apply(params, X), MODEL.apply(params, X))
    assert len(model.apply(params, X, method=model.get_attention_maps)) == L
    dropped = model.apply(params, X, train=True, rngs={"dropout": jax.random.key(1)})
    assert np.abs(dropped - MODEL.apply(params, X)).max() > 1e-2


def test_the_output_network_drops_a_quarter_and_scales_the_rest():
    """Every parameter is zero but those through which ones come out of the output norm, and from there as logits."""
    model = TransformerPredictor(D, D, H, L, dropout_prob=0.25)
    x = np.zeros((101, T, FEATURES), np.float32)
    params = jax.tree.map(np.zeros_like, model.init(jax.random.key(0), x)["params"])
    params["output_norm"]["bias"] = np.ones(D, np.float32)
    params["output_layer"]["kernel"] = np.eye(D, dtype=np.float32)
    np.testing.assert_array_equal(model.apply({"params": params}, x), 1)
    logits = model.apply({"params": params}, x, train=True, rngs={"dropout": jax.random.key(1)})
    kept = logits != 0
    np.testing.assert_allclose(logits[kept], 4 / 3, rtol=1e-6)
    # 3 030 numbers: the standard deviation of the share is 0.008.
    assert kept.mean() == pytest.approx(0.75, abs=0.03)


def test_a_sequence_longer_than_the_table_is_an_error_with_positions_alone(params):
    model = TransformerPredictor(D, C, H, L, max_len=T - 1)
    with pytest.raises(ValueError, match="5 positions; max_len"):
        model.apply(params, X)
    assert model.apply(params, X, None, False).shape == (B, T, C)
