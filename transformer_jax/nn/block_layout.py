"""Rows of attention in blocks: how arrays are cut into them, and how many rows are computed at once."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

MAX_AT_ONCE = 64  # rows, on accelerators


def split_blocks(x: Float[Array, "N H T w"], group: int, size: int) -> Float[Array, "rows nq G q w"]:
    """Cut the positions of each head into blocks of a size, with zeros at the end where needed.

    A row is a batch element and the `group` heads that share a head of keys and values.
    """
    rest = -x.shape[2] % size
    if rest:
        x = jnp.pad(x, ((0, 0), (0, 0), (0, rest), (0, 0)))
    return x.reshape(-1, group, x.shape[2] // size, size, x.shape[-1]).swapaxes(1, 2)


def join_blocks(x: Float[Array, "rows nq G q w"], like: Float[Array, "N H T d"]) -> Float[Array, "N H T w"]:
    """The inverse of `split_blocks`, for an array with the batch, heads and positions of `like`."""
    num, heads, length, _ = like.shape
    x = x.swapaxes(1, 2).reshape(num, heads, -1, x.shape[-1])
    return x[:, :, :length]


def over_rows(function: Any, total: Any, arguments: Any, at_once: int | None) -> tuple[Any, Any]:
    """`lax.scan` over rows, of which some are computed at once."""
    if at_once is None:
        return lax.scan(function, total, arguments)
    chunks = jax.tree.map(lambda x: x.reshape(-1, at_once, *x.shape[1:]), arguments)

    def of_chunk(total: Any, chunk: Any) -> tuple[Any, Any]:
        zeros = jax.tree.map(jnp.zeros_like, total)
        parts, results = jax.vmap(function, (None, 0))(zeros, chunk)
        return jax.tree.map(lambda old, new: old + new.sum(0), total, parts), results

    total, results = lax.scan(of_chunk, total, chunks)
    return total, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)


def rows_at_once(num_rows: int) -> int | None:
    """How many rows are computed at once: None for one after the other, where one keeps the machine busy."""
    if jax.default_backend() == "cpu":
        return None
    return max(n for n in range(1, MAX_AT_ONCE + 1) if num_rows % n == 0)
