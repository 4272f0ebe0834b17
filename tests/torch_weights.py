"""Copies the weights of PyTorch's attention and Transformer modules into parameter trees of this package."""

import numpy as np
import torch


def dense(weight: torch.Tensor, bias: torch.Tensor) -> dict[str, np.ndarray]:
    """A linear layer: PyTorch keeps `[out, in]`, Flax `[in, out]`."""
    return {"kernel": weight.detach().numpy().T, "bias": bias.detach().numpy()}


def layer_norm(module: torch.nn.LayerNorm) -> dict[str, np.ndarray]:
    return {"scale": module.weight.detach().numpy(), "bias": module.bias.detach().numpy()}


def attention(module: torch.nn.MultiheadAttention) -> dict[str, dict[str, np.ndarray]]:
    """Multi-head attention: PyTorch stacks the query's, the key's and the value's projection."""
    weights, biases = module.in_proj_weight.chunk(3), module.in_proj_bias.chunk(3)
    names = ("query_proj", "key_proj", "value_proj")
    projections = {name: dense(w, b) for name, w, b in zip(names, weights, biases, strict=True)}
    return projections | {"output_proj": dense(module.out_proj.weight, module.out_proj.bias)}


def encoder_block(module: torch.nn.TransformerEncoderLayer) -> dict:
    return {
        "self_attn": attention(module.self_attn),
        "self_attn_residual": {"norm": layer_norm(module.norm1)},
        "feed_forward": {
            "expand": dense(module.linear1.weight, module.linear1.bias),
            "contract": dense(module.linear2.weight, module.linear2.bias),
        },
        "feed_forward_residual": {"norm": layer_norm(module.norm2)},
    }


def encoder(module: torch.nn.TransformerEncoder) -> dict:
    params = {f"layers_{i}": encoder_block(layer) for i, layer in enumerate(module.layers)}
    if module.norm is not None:
        params["norm"] = layer_norm(module.norm)
    return params


def decoder_block(module: torch.nn.TransformerDecoderLayer) -> dict:
    return encoder_block(module) | {
        "cross_attn": attention(module.multihead_attn),
        "cross_attn_residual": {"norm": layer_norm(module.norm2)},
        "feed_forward_residual": {"norm": layer_norm(module.norm3)},
    }


def transformer(module: torch.nn.Transformer) -> dict:
    decoder = {f"layers_{i}": decoder_block(layer) for i, layer in enumerate(module.decoder.layers)}
    return {"encoder": encoder(module.encoder), "decoder": decoder | {"norm": layer_norm(module.decoder.norm)}}
