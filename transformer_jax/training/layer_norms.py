"""Norms by layer, of gradients and of parameters."""

import itertools
import re
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.trees import Arrays, Params, Shapes


class Layers(NamedTuple):
    """The layers of a model, and the layer of each number of its gradient."""

    names: tuple[str, ...]
    places: Arrays  # NumPy, in the gradient's structure and shapes: where in `names` each number's layer is


def layers_of(params: Params | Shapes) -> Layers:
    """The layers of parameters, or of their shapes."""
    leaves = flatten_dict(params, sep="/")
    names = tuple(dict.fromkeys(layer_of(path) for path in leaves))
    place_of = {name: np.int32(place) for place, name in enumerate(names)}
    places = {path: np.broadcast_to(place_of[layer_of(path)], np.shape(leaf)) for path, leaf in leaves.items()}
    return Layers(names, unflatten_dict(places, sep="/"))


def layer_of(path: str) -> str:
    """`encoder/layers_0` for `encoder/layers_0/self_attn/query_proj/kernel`, `output_net` for `output_net/dense/bias`.

    The path up to the first part that ends with a number, or its first part.
    """
    parts = path.split("/")
    numbered = [place for place, part in enumerate(parts) if re.search(r"_\d+$", part)]
    return "/".join(parts[: numbered[0] + 1]) if numbered else parts[0]


def layer_norms(params: Params) -> dict[str, float]:
    """The Euclidean norm of all arrays of a layer together, by the layer's path, computed by NumPy."""
    squares: dict[str, float] = {}
    for path, array in flatten_dict(params, sep="/").items():
        layer = layer_of(path)
        squares[layer] = squares.get(layer, 0.0) + float(np.sum(np.square(np.asarray(array, np.float32))))
    return {layer: total**0.5 for layer, total in squares.items()}


def gradient_norms(gradients: Arrays, layers: Layers) -> Float[Array, " layers"]:
    """Inside a step: the Euclidean norm of each layer's gradient, in the order of `layers.names`.

    Args:
        gradients: in the layout in which the devices keep the parameters.
        layers: in the same layout.
    """
    squares = [jnp.zeros(())] * len(layers.names)
    of_stacks = jnp.zeros(len(layers.names))
    for gradient, places in zip(jax.tree.leaves(gradients), jax.tree.leaves(layers.places), strict=True):
        if places.ndim > 1 and any(places.strides):  # stacked layers
            by_layer = jnp.sum(jnp.square(gradient), axis=tuple(range(1, gradient.ndim)))
            of_stacks = of_stacks.at[places[(slice(None), *[0] * (places.ndim - 1))]].add(by_layer)
            continue
        for place, run in _runs(places):
            squares[place] += jnp.sum(jnp.square(gradient if run is None else gradient[run]))
    return jnp.sqrt(jnp.stack(squares) + of_stacks)


def _runs(places: Int[np.ndarray, "..."]) -> Iterator[tuple[int, slice | None]]:
    """The layers of an array, each with its slice; None for a slice that is the whole array."""
    if not any(places.strides):  # one number, broadcast
        yield int(places.flat[0]), None
        return
    starts = [0, *(np.flatnonzero(np.diff(places)) + 1), len(places)]
    for start, stop in itertools.pairwise(starts):
        yield int(places[start]), slice(start, stop)
