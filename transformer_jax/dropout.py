"""The dropout of every model here."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

LEVELS = 2**16


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014): drop elements with a probability, and scale the others up.

    Each element is decided by 16 random bits. The probability is rounded to a multiple of 2⁻¹⁶, and the scale is that
    of the rounded one, so that the mean is kept.
    """

    rate: float  # probability of dropping an element

    def __call__(self, x: Float[ArrayLike, "..."], *, train: bool) -> Float[Array, "..."]:
        """`x` itself unless `train`, which needs the random key `dropout` where the rate is not zero."""
        dropped_levels = round(self.rate * LEVELS)
        if not train or dropped_levels == 0:
            return jnp.asarray(x)
        bits = jax.random.bits(self.make_rng("dropout"), jnp.shape(x), jnp.uint16)
        return jnp.where(bits >= dropped_levels, x * (LEVELS / (LEVELS - dropped_levels)), 0)
