"""Dropout of every model here."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.attention.dropout import counter_bits
from transformer_jax.errors import check_number, check_probability


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014): drop elements with a probability, and scale the others up.

    Raises:
        InputError: at construction, if `rate` is outside [0, 1).
    """

    rate: float  # probability of dropping an element

    def __post_init__(self) -> None:
        check_number("rate", self.rate)
        check_probability("rate", self.rate)
        super().__post_init__()

    def __call__(self, x: Float[ArrayLike, "..."], *, train: bool) -> Float[Array, "..."]:
        """Drop elements if `train`, which needs the random key `dropout` unless the rate is zero; else return `x`."""
        if not train or self.rate == 0:
            return jnp.asarray(x)
        bits = counter_bits(self.make_rng("dropout"), jnp.shape(x))
        return jnp.where(bits >= jnp.uint32(self.rate * 2**32), x / (1 - self.rate), 0)
