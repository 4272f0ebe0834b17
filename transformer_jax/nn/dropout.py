"""Dropout of every model here, and the random bits that it uses."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Float, PRNGKeyArray, UInt32

from transformer_jax.errors import check_number, check_probability
from transformer_jax.nn.layer_keys import dropout_key
from transformer_jax.nn.mesh_axis import part_number


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
        bits = counter_bits(dropout_key(self), jnp.shape(x))
        return jnp.where(bits >= jnp.uint32(self.rate * 2**32), x / (1 - self.rate), 0)


def counter_bits(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """32 random bits for each element: a hash of its index and of 64 bits drawn from the key.

    In a step whose batch is split over devices, or computed part by part, the index counts the elements of all of them,
    so that a batch gets the same bits in any number of parts.

    The quality suffices for dropout; use `jax.random.bits` for anything else. That costs a multiple: with it, dropout
    took a quarter of a training step (docs/performance.md).
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    size = math.prod(shape)
    index = (lax.iota(jnp.uint32, size) + jnp.uint32(part_number() * size)).reshape(shape)
    # Twice, since after one round the streams of different keys are permutations of each other.
    return _mix(_mix(index ^ first) + second)


def pair_bits(
    seeds: UInt32[Array, " 2"], rows: UInt32[Array, "..."], columns: UInt32[Array, "..."]
) -> UInt32[Array, "..."]:
    """32 random bits for each pair of a row and a column, whose indices broadcast: a hash of the two and of the seeds.

    Where a matrix is computed in blocks, each block draws the bits that the whole matrix has there. Rows and columns
    are hashed apart, so that an element costs one round.
    """
    first, second = seeds
    return _mix(_mix(_mix(rows ^ first) + second) + _mix(_mix(columns ^ second) + first))


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Bijection of 32 bits in which each bit of the input flips each of the output with probability 1/2.

    Source: C. Wellons, "Prospecting for Hash Functions" (2018), the function with the lowest bias of this form.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
