"""The encoder: agreement with PyTorch on the same weights, attention maps, masks, what each option changes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from transformer_jax import EncoderBlock, TransformerEncoder, causal_mask, padding_mask, params_from_torch

B, T, D, H, F, L = 2, 5, 21, 3, 13, 3
VALID = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)


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


def our_encoder(**options) -> TransformerEncoder:
    return TransformerEncoder(L, D, H, F, layer_norm_epsilon=1e-5, **options)


@pytest.mark.parametrize(
    ("mask", "torch_options"),
    [
        (None, {}),
        (causal_mask(T), {"mask": torch.ones(T, T).triu(1).bool()}),
        (padding_mask(VALID), {"src_key_padding_mask": torch.tensor(~VALID)}),
    ],
    ids=["no mask", "causal", "padding"],
)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_outputs_and_gradients_agree_with_pytorch(mask, torch_options, norm_first, activation):
    module = torch_encoder(norm_first=norm_first, activation=activation)
    # PyTorch's gelu is the exact one, JAX's default an approximation.
    ours = our_encoder(
        norm_first=norm_first, activation={"relu": nn.relu, "gelu": lambda x: nn.gelu(x, approximate=False)}[activation]
    )
    params = params_from_torch(ours, module.state_dict())
    x, cotangent = draw(B, T, D), draw(B, T, D, seed=1)
    torch_x = torch.tensor(x, requires_grad=True)
    expected = module(torch_x, **torch_options)
    (expected * torch.tensor(cotangent)).sum().backward()

    np.testing.assert_allclose(ours.apply(params, x, mask), expected.detach(), atol=1e-5)
    gradient, x_gradient = jax.grad(lambda p, x: jnp.sum(ours.apply(p, x, mask) * cotangent), (0, 1))(params, x)
    np.testing.assert_allclose(x_gradient, torch_x.grad, atol=1e-5, rtol=1e-5)
    kernel = gradient["params"]["layers_0"]["feed_forward"]["expand"]["kernel"]
    np.testing.assert_allclose(kernel.T, module.layers[0].linear1.weight.grad, atol=1e-5, rtol=1e-5)


def test_a_block_agrees_with_pytorch():
    module = torch_encoder().layers[0]
    block = EncoderBlock(D, H, F, layer_norm_epsilon=1e-5)
    x = draw(B, T, D)
    output = block.apply(params_from_torch(block, module.state_dict()), x, causal_mask(T))
    expected = module(torch.tensor(x), src_mask=torch.ones(T, T).triu(1).bool()).detach()
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
def test_attention_maps_are_those_of_pytorch_layer_by_layer(norm_first):
    module = torch_encoder(norm_first=norm_first)
    encoder = our_encoder(norm_first=norm_first)
    x, mask = draw(B, T, D), padding_mask(VALID)
    params = params_from_torch(encoder, module.state_dict())
    maps = encoder.apply(params, x, mask, method=encoder.get_attention_maps)
    assert [attention.shape for attention in maps] == [(B, H, T, T)] * L
    h = torch.tensor(x)
    for attention, layer in zip(maps, module.layers, strict=True):
        query = layer.norm1(h) if norm_first else h
        _, expected = layer.self_attn(
            query, query, query, key_padding_mask=torch.tensor(~VALID), average_attn_weights=False
        )
        np.testing.assert_allclose(attention, expected.detach(), atol=1e-5)
        h = layer(h, src_key_padding_mask=torch.tensor(~VALID))


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


def test_dropout_needs_a_key_in_training_alone_and_scales_what_it_keeps():
    encoder, params = initialised(dropout_prob=0.5)
    x = draw(B, T, D)
    still = encoder.apply(params, x)
    one, two = (encoder.apply(params, x, train=True, rngs={"dropout": jax.random.key(i)}) for i in (1, 2))
    assert np.abs(one - two).max() > 0.1
    assert np.abs(one - still).max() > 0.1
    with pytest.raises(Exception, match="dropout"):
        encoder.apply(params, x, train=True)


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
