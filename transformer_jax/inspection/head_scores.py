"""Scores of what heads attend to: the token before, and what followed this token the last time (Olsson et al. 2022)."""

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import as_array
from transformer_jax.errors import InputError


def previous_token_scores(weights: Float[ArrayLike, "..."]) -> Float[Array, " H"]:
    """Mean weight that each head gives to the position before its own (Olsson et al. 2022).

    Args:
        weights: `[B, H, T, T]` of a self-attention.

    Raises:
        InputError: the weights are not `[B, H, T, T]` with T of at least 2.
    """
    weights = _checked(weights)
    return jnp.diagonal(weights, -1, 2, 3).mean((0, 2))


def induction_scores(weights: Float[ArrayLike, "..."], tokens: Int[ArrayLike, "..."]) -> Float[Array, " H"]:
    """Mean weight that each head gives to what followed earlier occurrences of the token at the query.

    The prefix matching score of Olsson et al. 2022, for any tokens: of query t it is the sum of the weights of the keys
    s up to t with `tokens[s - 1] == tokens[t]`, where there are some. On random tokens without repetition that come
    twice it is the weight T / 2 - 1 positions before, over the second half.

    Args:
        weights: `[B, H, T, T]` of a self-attention.
        tokens: `[B, T]`, at its positions.

    Returns:
        The mean over all queries whose token occurred before; NaN where there is none.

    Raises:
        InputError: the weights are not `[B, H, T, T]` with T of at least 2, or the tokens not `[B, T]`.
    """
    weights = _checked(weights)
    tokens = as_array("tokens", tokens)
    if tokens.shape != (weights.shape[0], weights.shape[-1]):
        raise InputError(f"tokens has shape {tokens.shape}; it must be {(weights.shape[0], weights.shape[-1])}, [B, T]")
    length = weights.shape[-1]
    before = jnp.concatenate([jnp.zeros_like(tokens[:, :1]), tokens[:, :-1]], 1)  # tokens[s - 1]
    follows = (tokens[:, :, None] == before[:, None]) & jnp.tri(length, dtype=bool) & (jnp.arange(length) > 0)
    is_repeated = follows.any(-1)  # [B T]
    found = jnp.einsum("bhts,bts->h", weights, follows.astype(weights.dtype))
    return found / jnp.where(is_repeated.any(), is_repeated.sum(), jnp.nan)


def _checked(weights: ArrayLike) -> Array:
    weights = jnp.asarray(as_array("weights", weights))
    if weights.ndim != 4 or weights.shape[2] != weights.shape[3] or weights.shape[3] < 2:
        raise InputError(f"weights has shape {weights.shape}; it must be [B, H, T, T] with T of at least 2")
    return weights
