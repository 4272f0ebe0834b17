"""The dropout of every model here, and the random bits that it is decided by."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray, UInt32

from transformer_jax.nn.mesh_axis import device_number


class Dropout(nn.Module):
    """Inverted dropout (Srivastava et al. 2014): drop elements with a probability, and scale the others up."""

    rate: float  # probability of dropping an element

    def __call__(self, x: Float[ArrayLike, "..."], *, train: bool) -> Float[Array, "..."]:
        """`x` itself unless `train`, which needs the random key `dropout` where the rate is not zero."""
        if not train or self.rate == 0:
            return jnp.asarray(x)
        bits = counter_bits(self.make_rng("dropout"), jnp.shape(x))
        return jnp.where(bits >= jnp.uint32(self.rate * 2**32), x / (1 - self.rate), 0)


def counter_bits(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """32 random bits for each element: a hash of its number and of 64 bits drawn from the key.

    In a step that is sharded over devices the elements are numbered through all of them, so that a batch gets the same
    bits however many share it.

    Good enough to drop by, and not to be taken for more. `jax.random.bits` draws better ones, at a multiple of the
    cost: with it, dropout took a quarter of a training step (docs/performance.md).
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    size = math.prod(shape)
    number = (lax.iota(jnp.uint32, size) + jnp.uint32(device_number() * size)).reshape(shape)
    # Twice, since one round leaves the streams of different keys permutations of each other.
    return _mix(_mix(number ^ first) + second)


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32 bits in which each bit of the input flips each of the output with probability 1/2.

    Source: C. Wellons, "Prospecting for Hash Functions" (2018), the function with the lowest bias of this form.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
