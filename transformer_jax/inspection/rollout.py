"""Attention through all layers to the input: rollout (Abnar and Zuidema 2020)."""

from collections.abc import Iterable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.errors import InputError


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
    shapes = [np.shape(layer) for layer in weights] if isinstance(weights, Iterable) else []
    if not shapes or len(set(shapes)) > 1 or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3]:
        raise InputError(f"weights has shapes {shapes}; it must hold one [B, H, T, T] for each layer")
    totals = [jnp.eye(shapes[0][-1])]
    for layer in weights:
        totals.append((jnp.asarray(layer).mean(1) + totals[0]) / 2 @ totals[-1])
    return jnp.stack(totals[1:])
