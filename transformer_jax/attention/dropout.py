"""Dropout of attention weights (Vaswani et al. 2017's code; Srivastava et al. 2014), and the random bits for it.

The bits are hashes of an element's index, far cheaper than draws of JAX's generators.
"""

import math
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, PRNGKeyArray, UInt32

from transformer_jax.argument_checks import Probability, check_fields, check_key
from transformer_jax.mesh_axis import part_number
from transformer_jax.trees import pytree_class, static_field


@pytree_class
class AttentionDropout:
    """Drop attention weights with a probability, and scale the others up.

    Which ones follows from the key and from the indices of batch element, head, query and key, so that every
    implementation drops the same ones.

    Raises:
        InputError: `rate` is outside [0, 1), or `key` is no random key.
    """

    rate: Probability = static_field()  # of dropping a weight
    key: Annotated[PRNGKeyArray, check_key]

    def __post_init__(self) -> None:
        check_fields(self)

    def seeds(self) -> UInt32[Array, " 2"]:
        """The bits of the key that the draws depend on."""
        return jax.random.bits(self.key, (2,), jnp.uint32)


def first_row(num_rows: int) -> UInt32[Array, ""]:
    """Index of the first of these rows of weights among those of all devices and parts that share a batch."""
    return jnp.asarray(part_number() * num_rows, jnp.uint32)


def kept(
    rate: float, seeds: UInt32[Array, " 2"], rows: UInt32[Array, "..."], keys: UInt32[Array, "..."]
) -> Bool[Array, "..."]:
    """Whether dropout keeps each weight, given the index of its row among all rows and that of its key.

    The bits are a hash of the two and of the seeds, so that each block of the weights draws those that the whole matrix
    has there. Rows and keys are hashed apart, so that an element costs one round.
    """
    first, second = seeds
    bits = _mix(_mix(_mix(rows ^ first) + second) + _mix(_mix(keys ^ second) + first))
    return jnp.greater_equal(bits, jnp.uint32(rate * 2**32))


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


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Bijection of 32 bits in which each bit of the input flips each of the output with probability 1/2.

    Source: C. Wellons, "Prospecting for Hash Functions" (2018), the function with the lowest bias of this form.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
