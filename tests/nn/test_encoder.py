"""The encoder: agreement with PyTorch on the same weights, attention maps, masks, what each option changes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax import EncoderBlock, TransformerEncoder, causal_mask, padding_mask, params_from_torch

B, T, D, H, F, L = 2, 5, 21, 3, 13, 3
VALID = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)

RANDOM = np.random.default_rng(7).random((B, H, T, T)) < 0.6
RANDOM[..., 0] = True  # every query may attend to something
MASKS = {
    "no mask": None,
    "causal": np.tri(T, dtype=bool),
    "B T T": RANDOM[:, 0],
    "B H T T": RANDOM,
    "padding": np.asarray(padding_mask(VALID)),
}
every_kind_of_mask = pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def torch_encoder(**options) -> torch.nn.TransformerEncoder:
    """PyTorch's encoder, every weight drawn, so that no bias or scale can be forgotten."""
    torch.manual_seed(5)
    layer = torch.nn.TransformerEncoderLayer(D, H, F, dropout=0.0, batch_first=True, **options)
    norm = torch.nn.LayerNorm(D) if options.get("norm_first") else None
    module = torch.nn.TransformerEncoder(layer, L, norm, enable_nested_tensor=False)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def pytorch_mask(mask: np.ndarray | None, name: str) -> dict[str, torch.Tensor]:
    """The same mask for PyTorch, True = may not attend: `[B, T]` for padding, otherwise `[B * H, T, T]` as `name`."""
    if mask is None:
        return {}
    if mask.shape == (B, 1, 1, T):
        return {"src_key_padding_mask": torch.tensor(~mask[:, 0, 0])}
    full = np.broadcast_to(mask[:, None] if mask.ndim == 3 else mask, (B, H, T, T))
    return {name: torch.tensor(~full.reshape(B * H, T, T))}


def check_outputs_and_gradients(ours, module: torch.nn.Module, mask: np.ndarray | None, name: str) -> None:
    """Of the input and of every parameter."""
    params = params_from_torch(ours, module.state_dict())
    x, cotangent = draw(B, T, D), draw(B, T, D, seed=1)
    torch_x = torch.tensor(x, requires_grad=True)
    expected = module(torch_x, **pytorch_mask(mask, name))
    (expected * torch.tensor(cotangent)).sum().backward()
    torch_gradients = {parameter: tensor.grad for parameter, tensor in module.named_parameters()}

    np.testing.assert_allclose(ours.apply(params, x, mask), expected.detach(), atol=1e-5)
    gradients, x_gradient = jax.grad(lambda p, x: jnp.sum(ours.apply(p, x, mask) * cotangent), (0, 1))(params, x)
    np.testing.assert_allclose(x_gradient, torch_x.grad, atol=1e-5, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5),
        gradients,
        params_from_torch(ours, torch_gradients),
    )


def our_encoder(**options) -> TransformerEncoder:
    return TransformerEncoder(L, D, H, F, layer_norm_epsilon=1e-5, **options)


@every_kind_of_mask
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_outputs_and_gradients_agree_with_pytorch(mask, norm_first, activation):
    # PyTorch's gelu is the exact one, JAX's default an approximation.
    ours = our_encoder(
        norm_first=norm_first, activation={"relu": nn.relu, "gelu": lambda x: nn.gelu(x, approximate=False)}[activation]
    )
    check_outputs_and_gradients(ours, torch_encoder(norm_first=norm_first, activation=activation), mask, "mask")


@every_kind_of_mask
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_block_agrees_with_pytorch(mask, norm_first):
    block = EncoderBlock(D, H, F, norm_first=norm_first, layer_norm_epsilon=1e-5)
    check_outputs_and_gradients(block, torch_encoder(norm_first=norm_first).layers[0], mask, "src_mask")


@every_kind_of_mask
@pytest.mark.parametrize("norm_first", [False, True])
def test_attention_maps_are_those_of_pytorch_layer_by_layer(mask, norm_first):
    module = torch_encoder(norm_first=norm_first)
    encoder = our_encoder(norm_first=norm_first)
    x = draw(B, T, D)
    params = params_from_torch(encoder, module.state_dict())
    maps = encoder.apply(params, x, mask, method=encoder.get_attention_maps)
    assert [attention.shape for attention in maps] == [(B, H, T, T)] * L
    renamed = {"src_key_padding_mask": "key_padding_mask", "src_mask": "attn_mask"}
    of_layer = pytorch_mask(mask, "src_mask")
    of_attention = {renamed[name]: tensor for name, tensor in of_layer.items()}
    h = torch.tensor(x)
    for attention, layer in zip(maps, module.layers, strict=True):
        query = layer.norm1(h) if norm_first else h
        _, expected = layer.self_attn(query, query, query, average_attn_weights=False, **of_attention)
        np.testing.assert_allclose(attention, expected.detach(), atol=1e-5)
        h = layer(h, **of_layer)


def initialised(**options):
    encoder = TransformerEncoder(L, D, H, F, **options)
    return encoder, encoder.init(jax.random.key(0), draw(B, T, D))


def test_the_maps_come_out_of_the_forward_pass_and_cost_nothing_when_nobody_asks():
    encoder, params = initialised()
    x = draw(B, T, D)
    output, maps = encoder.apply(params, x, return_attention=True)
    np.testing.assert_array_equal(output, encoder.apply(params, x))
    for attention in maps:
        np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-6)

    def flops(**options) -> float:
        return jax.jit(lambda p, x: encoder.apply(p, x, **options)).lower(params, x).compile().cost_analysis()["flops"]

    assert flops() == flops(return_attention=True)  # one attention, not a second one for the maps
    asked = jax.jit(lambda p, x: encoder.apply(p, x)).lower(params, x).compile().memory_analysis()
    assert asked.output_size_in_bytes == B * T * D * 4


def test_masked_positions_change_nothing_and_the_mask_shows_in_the_maps():
    encoder, params = initialised()
    x, mask = draw(B, T, D), padding_mask(VALID)
    other = np.where(VALID[..., None], x, 1e3).astype(np.float32)
    output, maps = encoder.apply(params, x, mask, return_attention=True)
    np.testing.assert_array_equal(output[VALID], encoder.apply(params, other, mask)[VALID])
    for attention in maps:
        np.testing.assert_array_equal(attention[0, :, :, 3:], 0)


def test_the_causal_receptive_field_read_from_gradients():
    encoder, params = initialised()
    x = draw(1, T, D)
    jacobian = jax.jacobian(lambda x: encoder.apply(params, x, causal_mask(T))[0, :, 0])(x)  # [T 1 T D]
    depends = np.abs(jacobian[:, 0]).max(-1) > 1e-9
    np.testing.assert_array_equal(depends, np.tri(T, dtype=bool))


def test_without_positions_permuting_the_input_permutes_the_output():
    encoder, params = initialised()
    x, order = draw(B, T, D), np.array([4, 2, 0, 3, 1])
    np.testing.assert_allclose(encoder.apply(params, x[:, order]), encoder.apply(params, x)[:, order], atol=1e-5)


def test_dropout_needs_a_key_and_changes_the_output_in_training_alone():
    encoder, params = initialised(dropout_prob=0.5)
    x = draw(B, T, D)
    still = encoder.apply(params, x)
    one, two = (encoder.apply(params, x, train=True, rngs={"dropout": jax.random.key(i)}) for i in (1, 2))
    assert np.abs(one - two).max() > 0.1
    assert np.abs(one - still).max() > 0.1
    with pytest.raises(Exception, match="dropout"):
        encoder.apply(params, x, train=True)


@pytest.mark.parametrize(
    ("not_zero", "kept_value"),
    [
        (["self_attn/output_proj/bias"], 4 / 3),
        (["feed_forward/contract/bias"], 4 / 3),
        # Dropped once as hidden units, and once more as the sub-layer's output.
        (["feed_forward/expand/bias", "feed_forward/contract/kernel"], (4 / 3) ** 2),
    ],
    ids=["attention's output", "feed-forward's output", "feed-forward's hidden units"],
)
def test_a_quarter_is_dropped_and_the_rest_scaled_to_keep_the_mean(not_zero, kept_value):
    """Every parameter is zero but those through which ones, or zeros, come out of one sub-layer."""
    block = EncoderBlock(D, H, dim_feedforward=D, dropout_prob=0.25, norm_first=True)
    x = np.zeros((31, T, D), np.float32)
    params = flatten_dict(jax.tree.map(np.zeros_like, block.init(jax.random.key(0), x)["params"]), sep="/")
    for path in not_zero:
        params[path] = np.eye(D, dtype=np.float32) if path.endswith("kernel") else np.ones(D, np.float32)
    params = {"params": unflatten_dict(params, sep="/")}
    np.testing.assert_array_equal(block.apply(params, x), 1)
    output = block.apply(params, x, train=True, rngs={"dropout": jax.random.key(1)})
    kept = output != 0
    np.testing.assert_allclose(output[kept], kept_value, rtol=1e-6)
    # 3 255 numbers: the standard deviation of the share is below 0.01.
    assert kept.mean() == pytest.approx(1 / kept_value, abs=0.03)


@pytest.mark.parametrize(
    "options", [{"norm_first": True}, {"activation": nn.gelu}, {"layer_norm_epsilon": 0.5}, {"dropout_prob": 0.5}]
)
def test_each_option_changes_the_output(options):
    encoder, params = initialised()
    changed = TransformerEncoder(L, D, H, F, **options)
    x = draw(B, T, D)
    if options.get("norm_first"):
        params["params"]["norm"] = params["params"]["layers_0"]["self_attn_residual"]["norm"]
    train = {"train": True, "rngs": {"dropout": jax.random.key(1)}}
    assert np.abs(changed.apply(params, x, **train) - encoder.apply(params, x, **train)).max() > 1e-3


def test_heads_that_do_not_divide_the_width_are_an_error():
    with pytest.raises(ValueError, match="num_heads is 4"):
        TransformerEncoder(L, D, 4, F)
    with pytest.raises(ValueError, match="num_heads is 4"):
        EncoderBlock(D, 4, F)
