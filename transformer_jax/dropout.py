"""Random bits for dropout (Srivastava et al. 2014), and dropout of attention weights (Vaswani et al. 2017's code).

The bits are hashes of an element's index, far cheaper than draws of JAX's generators. Where devices share a batch, or
it is computed part by part, the index is that in the whole batch, so that any number of parts drops the same elements.
"""

import math
from contextvars import ContextVar
from typing import Annotated

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, PRNGKeyArray, UInt32

from transformer_jax.argument_checks import Probability, check_fields, check_key
from transformer_jax.trees import pytree_class, static_field

AXIS = "data"  # name of the mesh axis over which devices share a batch's rows
# Number of the part that is computed, and the number of parts, where a device takes its rows part by part.
part_of_device: ContextVar[tuple[Array | int, int]] = ContextVar("part_of_device", default=(0, 1))


def sharing_axes() -> tuple[str, ...]:
    """`(AXIS,)` inside a step whose batch is split over devices, `()` elsewhere."""
    return tuple(axis for axis in jax.sharding.get_abstract_mesh().manual_axes if axis == AXIS)


def device_number() -> Array | int:
    """Index of this device along the axis inside a step whose batch is split over devices, 0 elsewhere."""
    axes = sharing_axes()
    return lax.axis_index(axes) if axes else 0


def part_number() -> Array | int:
    """Index of these rows among the parts into which devices and accumulation split the batch, in the batch's order."""
    number, num_parts = part_of_device.get()
    return device_number() * num_parts + number


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

    def keeps(self, shape: tuple[int, ...]) -> Bool[Array, "... T S"]:
        """Whether each of all weights `[..., T, S]` is kept."""
        num_rows = math.prod(shape[:-1])
        rows = first_row_of_part(num_rows) + jnp.arange(num_rows, dtype=jnp.uint32).reshape(*shape[:-1], 1)
        return is_kept(self.rate, self.seeds(), rows, jnp.arange(shape[-1], dtype=jnp.uint32))


def first_row_of_part(num_rows: int) -> UInt32[Array, ""]:
    """Index of the first of these rows of weights among those of all devices and parts that share a batch."""
    return jnp.asarray(part_number() * num_rows, jnp.uint32)


def is_kept(
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
