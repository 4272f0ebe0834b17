"""Dropout of attention weights (Vaswani et al. 2017's code; Srivastava et al. 2014)."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, PRNGKeyArray, UInt32

from transformer_jax.attention.random_bits import pair_bits
from transformer_jax.attention.values import shown, static, value
from transformer_jax.errors import check_number, check_probability
from transformer_jax.mesh_axis import part_number


@value
class AttentionDropout:
    """Drop attention weights with a probability, and scale the others up.

    Which ones follows from the key and from the indices of batch element, head, query and key, so that every
    implementation drops the same ones.

    Raises:
        InputError: `rate` is outside [0, 1).
    """

    rate: float = static()  # probability of dropping a weight
    key: PRNGKeyArray

    def __post_init__(self) -> None:
        check_number("rate", self.rate)
        check_probability("rate", self.rate)

    def seeds(self) -> UInt32[Array, " 2"]:
        """The bits of the key that the draws depend on."""
        bits: Array = jax.random.bits(self.key, (2,), jnp.uint32)
        return bits

    def __repr__(self) -> str:
        return f"AttentionDropout({self.rate}, {shown(self.key)})"


def first_row(num_rows: int) -> UInt32[Array, ""]:
    """Index of the first of these rows of weights among those of all devices and parts that share a batch."""
    return jnp.asarray(part_number() * num_rows, jnp.uint32)


def kept(
    rate: float, seeds: UInt32[Array, " 2"], rows: UInt32[Array, "..."], keys: UInt32[Array, "..."]
) -> Bool[Array, "..."]:
    """Whether dropout keeps each weight, given the index of its row among all rows and that of its key."""
    bits = pair_bits(seeds, rows, keys)
    return jnp.greater_equal(bits, jnp.uint32(rate * 2**32))
