"""Scores of attention weights alone: previous-token and induction heads (Olsson et al. 2022), attention rollout."""

from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import as_array
from transformer_jax.errors import InputError


def previous_token_scores(weights: Float[ArrayLike, "..."]) -> Float[Array, " H"]:
    """Compute the mean weight that each head gives to the previous position (Olsson et al. 2022).

    Args:
        weights: `[B, H, T, T]` of a self-attention.

    Raises:
        InputError: the weights are not `[B, H, T, T]` with T of at least 2.
    """
    weights = _checked(weights)
    return jnp.diagonal(weights, -1, 2, 3).mean((0, 2))


def induction_scores(
    weights: Float[ArrayLike, "..."], tokens: Int[ArrayLike, "..."]
) -> Float[Array, " H"]:
    """Compute the mean weight that each head gives to tokens that followed earlier occurrences of the query's token.

    The prefix matching score of Olsson et al. 2022, for any tokens: for query t, it is the sum of the weights of the
    keys s ≤ t with `tokens[s - 1] == tokens[t]`, if there are any. For a random sequence of distinct tokens, repeated
    once, it is the mean weight of the key T / 2 - 1 positions before the query, over the second half.

    Args:
        weights: `[B, H, T, T]` of a self-attention.
        tokens: `[B, T]`, the token at each position.

    Returns:
        The mean over all queries whose token occurred before; NaN if there are none.

    Raises:
        InputError: the weights are not `[B, H, T, T]` with T of at least 2, or the tokens are not `[B, T]`.
    """
    weights = _checked(weights)
    tokens = as_array("tokens", tokens)
    expected = weights.shape[0], weights.shape[-1]
    if tokens.shape != expected:
        raise InputError(f"tokens has shape {tokens.shape}; it must be {expected}, [B, T]")
    length = expected[1]
    # Keys are counted from the second on, since there is no token before the first: [T T-1].
    is_earlier = jnp.tri(length, length - 1, -1, dtype=bool)
    follows = (tokens[:, :, None] == tokens[:, None, :-1]) & is_earlier  # [B T T-1]
    total = jnp.einsum("bhts,bts->h", weights[..., 1:], follows.astype(weights.dtype))
    num_queries = follows.any(-1).sum()  # whose token occurred before
    return total / num_queries


def attention_rollout(weights: Sequence[Float[ArrayLike, "..."]]) -> Float[Array, "L B T T"]:
    """Multiply the attention weights of successive layers, with half of each layer for its residual connection.

    `Ã_l = A_l Ã_(l-1)`, `A_l = ½ mean over heads + ½ I`, `Ã_(-1) = I` (Abnar and Zuidema 2020, equation 1).

    Args:
        weights: self-attention weights `[B, H, T, T]` of each layer of one stack, as `get_attention_maps` returns them.

    Returns:
        For each layer l, the share of each input position in each output position; the rows sum to 1.

    Raises:
        InputError: there are no layers, or the weights do not all have one shape `[B, H, T, T]`.
    """
    shapes = [np.shape(layer) for layer in weights] if isinstance(weights, Iterable) else []
    if len(set(shapes)) != 1 or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3]:
        raise InputError(
            f"weights has shapes {shapes}; it must hold one [B, H, T, T] for each layer"
        )
    mean_over_heads = jnp.stack([*map(jnp.asarray, weights)]).mean(2)  # [L B T T]
    mixed = (mean_over_heads + jnp.eye(shapes[0][-1])) / 2
    return jax.lax.associative_scan(lambda earlier, later: later @ earlier, mixed)


def _checked(weights: ArrayLike) -> Array:
    """Return the weights of a self-attention as an array; an `InputError` if they have another shape."""
    weights = jnp.asarray(as_array("weights", weights))
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3] or weights.shape[3] < 2:
        raise InputError(
            f"weights has shape {weights.shape}; it must be [B, H, T, T] with T of at least 2"
        )
    return weights
