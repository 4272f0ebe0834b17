"""Fold the learned parts of norms into the layers that read them, so that weights alone show what is read."""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected_pass import NORMS
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.layer_kinds import OffsetRMSNorm
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trees import Params

Path = tuple[str, ...]
Flat = dict[Path, Array]
ATTENTION = "query_proj", "key_proj", "value_proj"
# by sub-layer
READERS = {
    "self_attn": ATTENTION,
    "cross_attn": ("query_proj",),
    "feed_forward": ("expand", "gate"),
}


@check_arguments
def fold_norms(model: nn.Module, params: Params) -> tuple[Any, Params]:
    """Fold the learned scale and bias of pre-norms into the layers that read them, without changing the output.

    `(x̂ ∘ s + b) W + c` becomes `x̂ W' + c'` with `W' = s ∘ W` and `c' = b W + c`; the norm keeps a scale of 1
    (`OffsetRMSNorm`: 0) and a bias of 0. After a LayerNorm, the columns of W' are centered too, because x̂ has mean 0,
    so that W' contains only what can be read (like `fold_layer_norm` of TransformerLens). The norms of all blocks are
    folded, and the norm after the last block of a `TransformerLM` or `TransformerPredictor`. For that, a
    `TransformerLM` is returned with an untied output layer if its embedding is tied, and with a bias there if the norm
    has a bias. Final norms of other models, norms of queries and keys, norms of the outputs of sub-layers, and norms
    of an output network are not folded.

    Args:
        model: a model with pre-norm.
        params: its parameters; stacked layers are returned unstacked.

    Returns:
        The model and its parameters.

    Raises:
        InputError: the model has post-norm; a norm is neither `LayerNorm` nor `RMSNorm` over the last axis; or the
            layer that reads a norm is unknown, or has no bias to which the norm's bias can be added.
    """
    settings = getattr(model, "settings", None)
    if settings is None or not settings.norm_first:
        raise InputError(
            "model has no pre-norm; a post-norm cannot be folded, as its output is the residual"
            " stream"
        )
    norm = settings.make_norm()
    flat: Flat = flatten_dict(unstack_layers(params))
    norms = dict.fromkeys(path[:-1] for path in flat if path[-2:-1] == ("norm",))
    if norms and type(norm).__call__ not in NORMS:
        raise InputError(
            f"settings.norm makes a {type(norm).__name__}; only LayerNorm and RMSNorm are folded"
        )
    fold = functools.partial(
        _fold,
        flat,
        is_centered=isinstance(norm, nn.LayerNorm),
        offset=1 if isinstance(norm, OffsetRMSNorm) else 0,
    )
    for path in norms:
        *block, module, _ = path
        if module.endswith("_residual"):  # a norm before a sub-layer
            sublayer = module.removesuffix("_residual")
            fold(path, [(*block, sublayer, name) for name in READERS.get(sublayer, ())])
    if ("decoder", "norm") in norms and isinstance(model, TransformerLM):
        if model.has_tied_output or ("decoder", "norm", "bias") in flat:
            model = _with_output_layer(model, flat)
        fold(("decoder", "norm"), [("output_layer",)])
    elif isinstance(model, TransformerPredictor):
        fold(("encoder", "norm"), [("output_hidden",)])
    return model, unflatten_dict(flat)


def _with_output_layer(model: TransformerLM, flat: Flat) -> TransformerLM:
    """Return the model with a separate output layer that has a bias, and add both to the parameters."""
    if model.has_tied_output:
        embedding = flat["embedding", "embedding"]
        flat["output_layer", "kernel"] = embedding.T * model.embeddings.output_scale
    kernel = flat["output_layer", "kernel"]
    no_bias = jnp.zeros(kernel.shape[1], kernel.dtype)
    flat.setdefault(("output_layer", "bias"), flat.pop(("output_bias",), no_bias))
    embeddings = dataclasses.replace(model.embeddings, output_bias=True, output_scale=1.0)
    return model.clone(tie_embeddings=False, embeddings=embeddings)


def _fold(flat: Flat, norm: Path, readers: list[Path], *, is_centered: bool, offset: int) -> None:
    """Fold one norm into its readers among the parameters; its factor is `offset` plus the learned scale."""
    name = "/".join(norm)
    scale = flat.get((*norm, "scale"))
    shift = flat.get((*norm, "bias"))
    readers = [reader for reader in readers if (*reader, "kernel") in flat]
    if not readers:
        raise InputError(f"{name} cannot be folded: the layer that reads it is unknown")
    for reader in readers:
        kernel = flat[*reader, "kernel"]
        if shift is not None:
            if (*reader, "bias") not in flat:
                raise InputError(
                    f"{'/'.join(reader)} has no bias, so the bias of {name} cannot be folded"
                    " into it"
                )
            flat[*reader, "bias"] = flat[*reader, "bias"] + shift @ kernel
        if scale is not None:
            kernel = (offset + scale[:, None]) * kernel
        flat[*reader, "kernel"] = kernel - kernel.mean(0) if is_centered else kernel
    if scale is not None:
        flat[*norm, "scale"] = jnp.full_like(scale, 1 - offset)
    if shift is not None:
        flat[*norm, "bias"] = jnp.zeros_like(shift)
