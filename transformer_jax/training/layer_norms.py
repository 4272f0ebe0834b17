"""Norms by layer, of gradients and of parameters."""

import re

import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jax import Array
from jaxtyping import Float

from transformer_jax.nn.layer_stacks import STACKED, layer_name
from transformer_jax.trees import Arrays


def layer_norms(tree: Arrays) -> dict[str, Float[Array, ""]]:
    """The Euclidean norm of all arrays of a layer together, by the layer's path.

    Args:
        tree: parameters, or shaped like them; layers that are stacked have norms of their own.
    """
    squares: dict[str, Array] = {}
    for path, array in flatten_dict(tree, sep="/").items():
        before, stack, _ = path.partition(f"{STACKED}/")
        layer = before + stack.rstrip("/") if stack else layer_of(path)
        square = jnp.sum(jnp.square(jnp.asarray(array)), axis=tuple(range(1 if stack else 0, jnp.ndim(array))))
        squares[layer] = squares[layer] + square if layer in squares else square
    norms: dict[str, Array] = {}
    for layer, total in squares.items():
        if layer.endswith(STACKED):
            before = layer.removesuffix(STACKED)
            norms |= {before + layer_name(number): norm for number, norm in enumerate(jnp.sqrt(total))}
        else:
            norms[layer] = jnp.sqrt(total)
    return norms


def layer_of(path: str) -> str:
    """`encoder/layers_0` for `encoder/layers_0/self_attn/query_proj/kernel`, `output_net` for `output_net/dense/bias`.

    The path up to the first part that ends with a number, or its first part.
    """
    parts = path.split("/")
    numbered = [place for place, part in enumerate(parts) if re.search(r"_\d+$", part)]
    return "/".join(parts[: numbered[0] + 1]) if numbered else parts[0]
