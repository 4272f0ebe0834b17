"""Sinusoidal positional encoding (Vaswani et al. 2017, section 3.5)."""

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.errors import InputError


def sinusoidal_table(length: int, d_model: int) -> Float[np.ndarray, "T D"]:
    """`PE[pos, 2i] = sin(pos / 10000^(2i/D))`, `PE[pos, 2i+1] = cos(pos / 10000^(2i/D))`.

    Computed in float64 and rounded once to float32. An odd D ends on a sine.
    """
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
    """

    d_model: int  # D
    max_len: int = 5000  # longest sequence that is accepted

    def __call__(self, x: Float[ArrayLike, "B T D"]) -> Float[Array, "B T D"]:
        """Return `x + PE[:T]`, in the type of `x`.

        Raises:
            InputError: the sequence is longer than `max_len`, or `x` is not `d_model` wide.
        """
        x = jnp.asarray(x)
        self._check(*x.shape[-2:])
        return x + sinusoidal_table(x.shape[-2], self.d_model).astype(x.dtype)

    def at(self, x: Float[ArrayLike, "B 1 D"], position: Int[ArrayLike, ""], length: int) -> Float[Array, "B 1 D"]:
        """Return `x + PE[position]`, where `position` may be traced and is below `length`.

        Raises:
            InputError: `length` is above `max_len`, or `x` is not `d_model` wide.
        """
        x = jnp.asarray(x)
        self._check(length, x.shape[-1])
        return x + jnp.asarray(sinusoidal_table(length, self.d_model).astype(x.dtype))[position]

    def _check(self, length: int, width: int) -> None:
        if length > self.max_len:
            raise InputError(
                f"the sequence has {length} positions; max_len is {self.max_len}, the most that may be encoded"
            )
        if width != self.d_model:
            raise InputError(f"the input is {width} wide; d_model is {self.d_model}, and the two must be equal")
