"""Masks as arrays: construction and allowed ranks.

A mask is boolean, True = may attend; integers 0 and 1 are accepted too. It has rank 2 `[T, S]`, rank 3 `[B, T, S]` (one
mask per batch element, shared by the heads) or rank 4 `[B, H, T, S]`, and an axis of size 1 broadcasts. No function
here broadcasts a mask to the size of the logits.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Shaped

from transformer_jax.argument_checks import as_array, known_values
from transformer_jax.attention.score_block import with_all_axes
from transformer_jax.errors import InputError, check_sizes

Mask = Shaped[ArrayLike, "..."]  # boolean or integer, of the ranks above

USE_PADDING_MASK = (
    "; a per-token validity vector [B, S] is not a mask of rank 2: call padding_mask(valid), which"
    " gives [B, 1, 1, S]"
)


def expand_mask(mask: Mask) -> Bool[Array, "#B #H #T #S"]:
    """Convert a mask of rank 2, 3 or 4 to a boolean mask of rank 4, with axes of size 1 for batch and heads.

    `[T, S]` becomes `[1, 1, T, S]`, `[B, T, S]` becomes `[B, 1, T, S]`, rank 4 keeps its shape.

    Raises:
        InputError: the mask has another rank, is neither boolean nor integer, or holds integers other than 0 and 1.
            The values of a traced mask are not checked; any integer other than 0 then means True.
    """
    return with_all_axes("mask", _as_boolean(mask), USE_PADDING_MASK)


def padding_mask(valid: Shaped[ArrayLike, "..."]) -> Bool[Array, "B 1 1 S"]:
    """Mask the padded keys of each batch element, for every head and every query.

    Args:
        valid: `[B, S]`, True (or 1) where there is a real token.

    Raises:
        InputError: `valid` has another rank, or is neither boolean nor integer.
    """
    valid = _as_boolean(valid, "valid")
    if valid.ndim != 2:
        raise InputError(
            f"valid has shape {valid.shape}; it may be [B, S], one truth value for each token"
        )
    return valid[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "T T"]:
    """Let position t attend to the positions up to and including t (Vaswani et al. 2017, section 3.2.3).

    Raises:
        InputError: `length` is below 1.
    """
    check_sizes(length=length)
    return jnp.tri(length, dtype=bool)


def _as_boolean(mask: ArrayLike, name: str = "mask") -> Array:
    array = as_array(name, mask)
    if not (array.dtype == bool or jnp.issubdtype(array.dtype, jnp.integer)):
        raise InputError(
            f"{name} has type {array.dtype}; it may be boolean (True = may attend) or integer 0/1"
        )
    values = known_values(array)
    if values is not None:
        others = np.setdiff1d(values, (0, 1))
        if others.size:
            raise InputError(f"{name} holds {others[0]}; an integer mask may hold only 0 and 1")
    return jnp.asarray(array).astype(bool)
