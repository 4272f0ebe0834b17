"""The encoder: agreement with PyTorch on the same weights, attention maps, masks, effect of each option."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import compiled, draw, drawn, quick_jit
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax import EncoderBlock, TransformerEncoder, padding_mask, params_from_torch
from transformer_jax.nn.blocks import BlockSettings

B, T, D, H, F, L = 2, 5, 15, 3, 13, 2
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


def full(mask: np.ndarray | None) -> np.ndarray:
    """The same mask as `[B, H, T, T]`, so that one compiled program serves for all of them."""
    mask = np.ones((T, T), bool) if mask is None else mask
    return np.broadcast_to(mask[:, None] if mask.ndim == 3 else mask, (B, H, T, T))


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
    return {name: torch.tensor(~full(mask).reshape(B * H, T, T))}


def settings(norm_first: bool, activation: str = "relu", **options) -> BlockSettings:
    """Those of PyTorch, whose gelu is the exact one; JAX's default is an approximation."""
    function = {"relu": nn.relu, "gelu": exact_gelu}[activation]
    return BlockSettings(norm_first=norm_first, activation=function, layer_norm_epsilon=1e-5, **options)


def exact_gelu(x: jax.Array) -> jax.Array:
    return nn.gelu(x, approximate=False)


@functools.cache
def compiled_gradients(model):
    """Output, and gradients of the parameters and of the input."""

    def total(params, x, mask, cotangent):
        output = model.apply(params, x, mask)
        return jnp.sum(output * cotangent), output

    return quick_jit(jax.value_and_grad(total, (0, 1), has_aux=True))


OPTIONS = [(mask, norm_first, "relu") for mask in MASKS for norm_first in (False, True)] + [("B T T", False, "gelu")]


@pytest.mark.slow
@pytest.mark.parametrize(("mask", "norm_first", "activation"), OPTIONS)
def test_outputs_and_gradients_agree_with_pytorch(mask, norm_first, activation):
    """Gradients of the input and of every parameter."""
    module, mask = torch_encoder(norm_first=norm_first, activation=activation), MASKS[mask]
    ours = TransformerEncoder(L, D, H, F, settings=settings(norm_first, activation))
    params = {"params": params_from_torch(ours, module.state_dict())}
    x, cotangent = draw(B, T, D), draw(B, T, D, seed=1)
    torch_x = torch.tensor(x, requires_grad=True)
    expected = module(torch_x, **pytorch_mask(mask, "mask"))
    (expected * torch.tensor(cotangent)).sum().backward()
    torch_gradients = {parameter: tensor.grad for parameter, tensor in module.named_parameters()}

    (_, output), (gradients, x_gradient) = compiled_gradients(ours)(params, x, full(mask), cotangent)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(x_gradient, torch_x.grad, atol=1e-5, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5),
        gradients,
        {"params": params_from_torch(ours, torch_gradients)},
    )


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_block_agrees_with_pytorch(norm_first):
    layer = torch_encoder(norm_first=norm_first).layers[0]
    block = EncoderBlock(D, H, F, settings=settings(norm_first))
    params = {"params": params_from_torch(block, layer.state_dict())}
    expected = layer(torch.tensor(draw(B, T, D)), **pytorch_mask(RANDOM, "src_mask")).detach()
    np.testing.assert_allclose(compiled(block)(params, draw(B, T, D), RANDOM), expected, atol=1e-5)


@pytest.mark.parametrize("mean", [100, 1000])
def test_a_block_agrees_with_pytorch_on_a_residual_stream_of_large_mean(mean):
    """The variance as E[x²] - E[x]² is wrong by 0.3 at a mean of 1000, which changes the block's output by more."""
    layer = torch_encoder(norm_first=True).layers[0]
    block = EncoderBlock(D, H, F, settings=settings(norm_first=True))
    params = {"params": params_from_torch(block, layer.state_dict())}
    x = mean + draw(B, T, D)
    exact = layer.double()(torch.tensor(x, dtype=torch.float64)).detach()
    output = compiled(block)(params, x, full(None))
    # float32 resolves numbers around the mean to mean · 2⁻²³: so exactly are the normed inputs known. Each sub-layer
    # may amplify that by the product of its two layers' norms, here below 10 for random weights.
    np.testing.assert_allclose(output, exact, rtol=0, atol=20 * mean * 2**-23)


ENCODER = TransformerEncoder(L, D, H, F)


@pytest.fixture(scope="module")
def params() -> dict:
    return drawn(ENCODER, draw(B, T, D))


@pytest.mark.slow
def test_maps_cost_nothing_unless_they_are_returned(params):
    x, mask = draw(B, T, D), full(None)
    without, with_maps = (
        compiled(ENCODER, return_attention=wanted).lower(params, x, mask).compile() for wanted in (False, True)
    )
    # One attention, not a second one for the maps.
    assert without.cost_analysis()["flops"] == with_maps.cost_analysis()["flops"]
    assert without.memory_analysis().output_size_in_bytes == B * T * D * 4


def test_dropout_needs_a_key_and_changes_the_output_in_training_alone(params):
    encoder = TransformerEncoder(L, D, H, F, dropout_prob=0.5)
    x, mask = draw(B, T, D), full(None)
    run = compiled(encoder, train=True)
    one, two = (run(params, x, mask, rngs={"dropout": jax.random.key(i)}) for i in (1, 2))
    assert np.abs(one - two).max() > 0.1
    assert np.abs(one - compiled(ENCODER)(params, x, mask)).max() > 0.1
    with pytest.raises(Exception, match="dropout"):
        jax.eval_shape(functools.partial(encoder.apply, train=True), params, x, mask)


@pytest.mark.slow
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
    block = EncoderBlock(D, H, dim_feedforward=D, settings=BlockSettings(dropout_prob=0.25, norm_first=True))
    x = np.zeros((43, T, D), np.float32)
    shapes = jax.eval_shape(block.init, jax.random.key(0), x)["params"]
    params = flatten_dict(jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), shapes), sep="/")
    for path in not_zero:
        params[path] = np.eye(D, dtype=np.float32) if path.endswith("kernel") else np.ones(D, np.float32)
    params = {"params": unflatten_dict(params, sep="/")}
    np.testing.assert_array_equal(compiled(block)(params, x), 1)
    output = compiled(block, train=True)(params, x, rngs={"dropout": jax.random.key(1)})
    kept = output != 0
    np.testing.assert_allclose(output[kept], kept_value, rtol=1e-6)
    # 3 225 numbers: the standard deviation of the share is below 0.01.
    assert kept.mean() == pytest.approx(1 / kept_value, abs=0.03)
