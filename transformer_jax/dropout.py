"""Random bits for dropout (Srivastava et al. 2014), and dropout of attention weights (Vaswani et al. 2017's code).

The bits are hashes of an element's index, far cheaper than JAX's random generators. If a batch is split over devices or
accumulation steps, the index is that in the whole batch, so that the same elements are dropped for any number of parts.
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
# Index of the current part and number of parts, if a device processes its rows part by part.
part_of_device: ContextVar[tuple[Array | int, int]] = ContextVar("part_of_device", default=(0, 1))


def sharing_axes() -> tuple[str, ...]:
    """Return `(AXIS,)` inside a step whose batch is split over devices, `()` elsewhere."""
    return tuple(axis for axis in jax.sharding.get_abstract_mesh().manual_axes if axis == AXIS)


def device_number() -> Array | int:
    """Return the index of this device along `AXIS` inside a step whose batch is split over devices, 0 elsewhere."""
    axes = sharing_axes()
    return lax.axis_index(axes) if axes else 0


def part_number() -> Array | int:
    """Return the index of the current part among all parts into which devices and accumulation split the batch."""
    number, num_parts = part_of_device.get()
    return device_number() * num_parts + number


@pytree_class
class AttentionDropout:
    """Dropout of attention weights: drop weights with a probability, and scale up the rest.

    The random key and the indices of batch element, head, query and key determine which weights are dropped, so that
    every implementation drops the same weights.

    Raises:
        InputError: `rate` is outside [0, 1), or `key` is not a random key.
    """

    rate: Probability = static_field()  # of dropping a weight
    key: Annotated[PRNGKeyArray, check_key]

    def __post_init__(self) -> None:
        check_fields(self)

    def seeds(self) -> UInt32[Array, " 2"]:
        """Draw the seeds of the hash from the key."""
        return jax.random.bits(self.key, (2,), jnp.uint32)

    def keeps(self, shape: tuple[int, ...]) -> Bool[Array, "... T S"]:
        """Return for all weights `[..., T, S]` whether each is kept."""
        num_rows = math.prod(shape[:-1])
        rows = first_row_of_part(num_rows) + jnp.arange(num_rows, dtype=jnp.uint32).reshape(
            *shape[:-1], 1
        )
        return is_kept(self.rate, self.seeds(), rows, jnp.arange(shape[-1], dtype=jnp.uint32))


def first_row_of_part(num_rows: int) -> UInt32[Array, ""]:
    """Return the index of the first of these rows of weights among the rows of all devices and parts of the batch."""
    return jnp.asarray(part_number() * num_rows, jnp.uint32)


def is_kept(
    rate: float, seeds: UInt32[Array, " 2"], rows: UInt32[Array, "..."], keys: UInt32[Array, "..."]
) -> Bool[Array, "..."]:
    """Return whether dropout keeps each weight, given the indices of its row (among all rows) and its key.

    The bits are a hash of both indices and the seeds, so that a block of the weights gets the same bits as in the whole
    matrix. Rows and keys are hashed separately, so that each element costs only one round.
    """
    first, second = seeds
    bits = _mix(_mix(_mix(rows ^ first) + second) + _mix(_mix(keys ^ second) + first))
    return jnp.greater_equal(bits, jnp.uint32(rate * 2**32))


def counter_bits(key: PRNGKeyArray, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Compute 32 random bits for each element: a hash of its index and of 64 bits drawn from the key.

    If the batch is split over devices or computed part by part, the index counts the elements of the whole batch, so
    that the bits do not depend on the number of parts.

    The quality suffices for dropout; use `jax.random.bits` for anything else. That is several times slower: with it,
    dropout took a quarter of a training step (docs/performance.md).
    """
    first, second = jax.random.bits(key, (2,), jnp.uint32)
    size = math.prod(shape)
    index = (lax.iota(jnp.uint32, size) + jnp.uint32(part_number() * size)).reshape(shape)
    # Two rounds, since after one round the streams of different keys are permutations of each other.
    return _mix(_mix(index ^ first) + second)


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Hash 32 bits bijectively, such that each input bit flips each output bit with probability near 1/2.

    Source: C. Wellons, "Prospecting for Hash Functions" (2018), the function with the lowest bias of this form.
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
