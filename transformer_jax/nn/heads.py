"""Heads of attention: their width and number, and their keys and values."""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.errors import InputError, check_heads, check_sizes


def head_width(embed_dim: int, num_heads: int) -> int:
    """Width d = D / H of one head.

    Raises:
        InputError: one of them is no whole number of at least 1, or `num_heads` does not divide `embed_dim`.
    """
    check_sizes(embed_dim=embed_dim, num_heads=num_heads)
    check_heads(embed_dim, num_heads)
    return embed_dim // num_heads


def check_kv_heads(num_kv_heads: int | None, num_heads: int) -> None:
    """Raise an `InputError` if the heads of keys and values are no divisor of those of the queries."""
    if num_kv_heads is not None:
        check_sizes(num_kv_heads=num_kv_heads)
        if num_heads % num_kv_heads:
            raise InputError(f"num_kv_heads is {num_kv_heads}; it must divide num_heads, {num_heads}")


class KeyValue(NamedTuple):
    """Projected keys and values of every head, computed once for a memory and kept while decoding."""

    key: Float[Array, "B Hkv S d"]
    value: Float[Array, "B Hkv S d"]

    def grow(self, length: int) -> "KeyValue":
        """Copy with room for `length` positions.

        Raises:
            InputError: there already is room for more.
        """
        check_sizes(self.key.shape[2], length=length)
        padding = (0, 0), (0, 0), (0, length - self.key.shape[2]), (0, 0)
        return KeyValue(jnp.pad(self.key, padding), jnp.pad(self.value, padding))
