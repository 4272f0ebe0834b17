"""The encoder: agreement with PyTorch on the same weights, attention maps, masks, effect of each option."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from compiled_models import compiled, draw

from transformer_jax import EncoderBlock, TransformerEncoder, params_from_torch
from transformer_jax.nn.blocks import BlockSettings

B, T, D, H, F, L = 2, 5, 15, 3, 13, 2
RANDOM = np.random.default_rng(7).random((B, H, T, T)) < 0.6
RANDOM[..., 0] = True  # every query may attend to something


def torch_encoder(**options) -> torch.nn.TransformerEncoder:
    """PyTorch's encoder with all weights random, so that a test notices an ignored bias or scale."""
    torch.manual_seed(5)
    layer = torch.nn.TransformerEncoderLayer(D, H, F, dropout=0.0, batch_first=True, **options)
    norm = torch.nn.LayerNorm(D) if options.get("norm_first") else None
    module = torch.nn.TransformerEncoder(layer, L, norm, enable_nested_tensor=False)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


PYTORCH_MASK = torch.tensor(~RANDOM.reshape(B * H, T, T))  # True = may not attend


def settings(norm_first: bool, activation: str = "relu", **options) -> BlockSettings:
    """Settings of PyTorch, whose GELU is exact; JAX's default is an approximation."""
    function = {"relu": nn.relu, "gelu": exact_gelu}[activation]
    return BlockSettings(norm_first=norm_first, activation=function, layer_norm_epsilon=1e-5, **options)


def exact_gelu(x: jax.Array) -> jax.Array:
    return nn.gelu(x, approximate=False)


@pytest.mark.slow
@pytest.mark.parametrize(("norm_first", "activation"), [(False, "relu"), (True, "gelu")])
def test_outputs_and_gradients_agree_with_pytorch(norm_first, activation):
    """Gradients of the input and of every parameter. For masks of other ranks see test_attention.py."""
    module = torch_encoder(norm_first=norm_first, activation=activation)
    ours = TransformerEncoder(L, D, H, F, settings=settings(norm_first, activation))
    params = {"params": params_from_torch(ours, module.state_dict())}
    x, cotangent = draw(B, T, D), draw(B, T, D, seed=1)
    torch_x = torch.tensor(x, requires_grad=True)
    expected = module(torch_x, mask=PYTORCH_MASK)
    (expected * torch.tensor(cotangent)).sum().backward()
    torch_gradients = {parameter: tensor.grad for parameter, tensor in module.named_parameters()}

    @jax.jit
    @functools.partial(jax.value_and_grad, argnums=(0, 1), has_aux=True)
    def total(params, x):
        output = ours.apply(params, x, RANDOM)
        return jnp.sum(output * cotangent), output

    (_, output), (gradients, x_gradient) = total(params, x)
    np.testing.assert_allclose(output, expected.detach(), atol=1e-5)
    np.testing.assert_allclose(x_gradient, torch_x.grad, atol=1e-5, rtol=1e-5)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5),
        gradients,
        {"params": params_from_torch(ours, torch_gradients)},
    )


def test_a_block_agrees_with_pytorch():
    layer = torch_encoder(norm_first=True).layers[0]
    block = EncoderBlock(D, H, F, settings=settings(norm_first=True))
    params = {"params": params_from_torch(block, layer.state_dict())}
    expected = layer(torch.tensor(draw(B, T, D)), src_mask=PYTORCH_MASK).detach()
    np.testing.assert_allclose(compiled(block)(params, draw(B, T, D), RANDOM), expected, atol=1e-5)
