"""Rotary positions: queries and keys turned by angles that grow with their position (Su et al. 2021)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.array_checks import as_array, known_values
from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError


def check_even(head_width: int) -> None:
    """Raise an `InputError` if the width of a head is odd, so that its elements make no pairs."""
    if head_width % 2:
        raise InputError(
            f"a head is {head_width} wide, model_dim / num_heads; rotary positions turn pairs, so it must be even"
        )


def rotary_table(length: int, head_width: int, base: float = 10_000.0) -> Float[np.ndarray, "T d"]:
    """Cosines, then sines, of the angles `pos · base^(-2i/d)`, i = 0 … d/2 - 1 (Su et al. 2021, section 3.3).

    Computed in float64 and rounded once to float32.
    """
    check_even(head_width)
    frequency = base ** (-np.arange(0, head_width, 2) / head_width)  # [d/2]
    angle = np.arange(length)[:, None] * frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def rotate(
    x: Float[Array, "*leading T d"], first: Start = 0, length: int | None = None, base: float = 10_000.0
) -> Float[Array, "*leading T d"]:
    """Turn the pair (x_2i, x_2i+1) of each position by its angle `pos · base^(-2i/d)` (Su et al. 2021, equation 34).

    The product of a query and a key then depends on the difference of their positions alone.

    Args:
        x: queries or keys `[..., T, d]`; the position of the first is `first`, which may be traced.
        first: position of the first, 0 … length - T.
        length: number of positions that there can be; None: T.
        base: what the angles' frequencies are powers of.

    Raises:
        InputError: d is odd, or `first` is known and outside of its range.
    """
    *_, num, width = x.shape
    table: Array = jnp.asarray(rotary_table(length or num, width, base))
    known = known_values(as_array("first", first))
    if known is not None and not 0 <= known <= len(table) - num:
        raise InputError(
            f"first is {known}; of {num} positions in a sequence of {len(table)} it may be 0 … {len(table) - num}"
        )
    if not (isinstance(first, int) and first == 0 and len(table) == num):
        table = jax.lax.dynamic_slice_in_dim(table, first, num)
    cos, sin = table[:, : width // 2], table[:, width // 2 :]  # [T d/2]
    pairs = x.reshape(*x.shape[:-1], width // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    rotated = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)  # float32 or wider
    return rotated.reshape(x.shape).astype(x.dtype)
