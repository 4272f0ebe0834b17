"""Norms by layer, of gradients and of parameters."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict
from jax import Array
from jaxtyping import Float

from transformer_jax.trees import Params


def layer_norms(params: Params, numpy: Any = jnp) -> dict[str, Any]:  # Any: the module, and its numbers
    """The Euclidean norm of all arrays of a layer together, by the layer's path.

    Args:
        params: of a model, or gradients with the same names.
        numpy: that computes, `jax.numpy` or `numpy`.
    """
    squares: dict[str, Any] = {}
    for path, array in flatten_dict(params, sep="/").items():
        layer = layer_of(path)
        squares[layer] = squares.get(layer, 0) + numpy.sum(numpy.square(numpy.asarray(array, numpy.float32)))
    return {layer: numpy.sqrt(total) for layer, total in squares.items()}


def layer_of(path: str) -> str:
    """`encoder/layers_0` for `encoder/layers_0/self_attn/query_proj/kernel`, `output_net` for `output_net/dense/bias`.

    The path up to the first part that ends with a number, or its first part.
    """
    parts = path.split("/")
    numbered = [place for place, part in enumerate(parts) if re.search(r"_\d+$", part)]
    return "/".join(parts[: numbered[0] + 1]) if numbered else parts[0]


def norms_where_due(
    gradients: Params, scale: Array, due: Array
) -> Mapping[str, tuple[Float[Array, ""], Float[Array, ""]]]:
    """`gradient_norm/<layer>` with weight 1 where `due`, else 0 with weight 0, which computes nothing.

    Args:
        gradients: with the parameters' names.
        scale: factor of the norms.
        due: whether to compute them.
    """

    def compute() -> dict[str, Array]:
        return {layer: norm * scale for layer, norm in layer_norms(gradients).items()}

    def skip() -> dict[str, Array]:
        return {layer: jnp.zeros(()) for layer in {layer_of(path): None for path in flatten_dict(gradients, sep="/")}}

    weight = due.astype(jnp.float32)
    return {f"gradient_norm/{layer}": (norm, weight) for layer, norm in jax.lax.cond(due, compute, skip).items()}
