"""Sinusoidal positional encoding (Vaswani et al. 2017, section 3.5)."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.checks import as_array, check_sequence, known_values


def sinusoidal_table(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """`PE[pos, 2i] = sin(pos / 10000^(2i/D))`, `PE[pos, 2i+1] = cos(pos / 10000^(2i/D))`.

    Computed in float64 and rounded once to float32. An odd D ends on a sine.

    Raises:
        InputError: `length` or `d_model` is below 1.
    """
    check_sizes(length=length, d_model=d_model)
    position = np.arange(length)[:, None]  # [T 1]
    frequency = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)  # [ceil(D/2)]
    angle = position * frequency  # [T ceil(D/2)]
    table = np.empty((length, d_model), np.float32)
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle[:, : d_model // 2])
    return table


class PositionalEncoding(nn.Module):
    """Add sinusoidal positions to a sequence.

    The table is a constant of the compiled program, as long as the sequence; no checkpoint contains it.

    Raises:
        InputError: at construction, if `d_model` or `max_len` is below 1.
    """

    d_model: int  # D
    max_len: int = 5000  # longest sequence that is accepted

    def __post_init__(self) -> None:
        check_sizes(d_model=self.d_model, max_len=self.max_len)
        super().__post_init__()

    def __call__(self, x: Float[ArrayLike, "B T D"]) -> Float[Array, "B T D"]:
        """Return `x + PE[:T]`, in the type of `x`.

        Raises:
            InputError: `x` is of no floating-point type, not `[B, T, D]`, or longer than `max_len`.
        """
        check_sequence("x", x)
        x = jnp.asarray(x)
        self._check(*x.shape[-2:])
        return x + sinusoidal_table(x.shape[-2], self.d_model).astype(x.dtype)

    def at(self, x: Float[ArrayLike, "B 1 D"], position: Int[ArrayLike, ""], length: int) -> Float[Array, "B 1 D"]:
        """Return `x + PE[position]`, where `position` may be traced and is below `length`.

        Raises:
            InputError: `length` is above `max_len`, `x` is of no floating-point type or not `[B, 1, D]`, or `position`
                is outside 0 … `length` - 1. A traced position is not checked: one beyond the end gets the last one's
                encoding.
        """
        check_sequence("x", x)
        x = jnp.asarray(x)
        self._check(length, x.shape[-1])
        known = known_values(as_array("position", position))
        if known is not None and not 0 <= known < length:
            raise InputError(f"position is {known}; it must be at least 0 and below length, which is {length}")
        return x + jnp.asarray(sinusoidal_table(length, self.d_model).astype(x.dtype))[position]

    def _check(self, length: int, width: int) -> None:
        if length > self.max_len:
            raise InputError(
                f"the sequence has {length} positions; max_len is {self.max_len}, the most that may be encoded"
            )
        if width != self.d_model:
            raise InputError(f"the input is {width} wide; d_model is {self.d_model}, and the two must be equal")
