"""Attention through all layers to the input: rollout, and maximum flow (Abnar and Zuidema 2020)."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.errors import InputError

UNITS = 2**24  # that the capacity 1 is counted in: the algorithm takes whole numbers, and float32 has no finer ones


def attention_rollout(weights: Sequence[Float[ArrayLike, "..."]]) -> Float[Array, "L B T T"]:
    """Multiply attention weights through the layers, with half of each layer for its residual connection.

    `Ã_l = A_l Ã_(l-1)`, `A_l = ½ mean over heads + ½ I`, `Ã_(-1) = I` (their equation 1, with the residual connection).

    Args:
        weights: `[B, H, T, T]` of the self-attention of each layer of one stack, as `get_attention_maps` gives them.

    Returns:
        For each layer l the part of each input position in each position after it; the rows sum to 1.

    Raises:
        InputError: there is no layer, or the weights are not all of one shape `[B, H, T, T]`.
    """
    total = None
    layers = []
    for layer in _with_residual(weights):
        total = layer if total is None else layer @ total
        layers.append(total)
    return jnp.stack(layers)


def attention_flow(weights: Sequence[Float[ArrayLike, "..."]]) -> Float[np.ndarray, "B T T"]:
    """Maximum flow from each position after the last layer to each input position.

    The nodes are the positions before, between and after the layers; the capacity of the edge from a position after
    layer l to one before it is the mean weight of the heads with the residual connection, `½ mean + ½ I`. It takes T²
    maximum flows through a graph of L·T² edges, one after another on the CPU, and is no function to compile.

    Args:
        weights: `[B, H, T, T]` of the self-attention of each layer of one stack, as `get_attention_maps` gives them.

    Returns:
        The flow from position t to input s, of at most 1, at a resolution of 6·10⁻⁸ for each edge.

    Raises:
        InputError: there is no layer, or the weights are not all of one shape `[B, H, T, T]`.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    layers = np.asarray(_with_residual(weights), np.float64)
    num_layers, num_rows, length, _ = layers.shape
    flow = np.zeros((num_rows, length, length))
    for row in range(num_rows):
        # Node l·T + t is position t before layer l.
        capacity = np.zeros([(num_layers + 1) * length] * 2, np.int32)
        for number, layer in enumerate(layers[:, row]):
            first = number * length
            capacity[first + length : first + 2 * length, first : first + length] = np.rint(layer * UNITS)
        graph = csr_array(capacity)
        for position, source in np.ndindex(length, length):
            found = maximum_flow(graph, num_layers * length + position, source)
            flow[row, position, source] = found.flow_value / UNITS
    return flow


def _with_residual(weights: Sequence[Float[ArrayLike, "..."]]) -> Float[Array, "L B T T"]:
    """Mean over the heads, and half of each layer for its residual connection: `½ mean + ½ I`.

    Raises:
        InputError: as `attention_rollout`.
    """
    shapes = [jnp.shape(layer) for layer in weights]
    if not shapes or len(set(shapes)) > 1 or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3]:
        raise InputError(f"weights has shapes {shapes}; it must hold one [B, H, T, T] for each layer")
    mean = jnp.stack([jnp.asarray(layer).mean(1) for layer in weights])
    return (mean + jnp.eye(shapes[0][-1])) / 2
