"""Rows of attention in blocks: how arrays are cut into them, and how many rows are computed at once.

A row is a batch element and a head of keys and values, with the group of query heads that share it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

MAX_AT_ONCE = 64  # rows, on accelerators


def split_blocks(x: Float[Array, "N H T w"], group: int, size: int) -> Float[Array, "N Hkv nq G q w"]:
    """Cut the positions of each head into blocks of a size, with zeros at the end where needed."""
    x = fill_blocks(x, size)
    return x.reshape(len(x), -1, group, x.shape[2] // size, size, x.shape[-1]).swapaxes(2, 3)


def fill_blocks(x: Float[Array, "N H T w"], size: int) -> Float[Array, "N H padded w"]:
    """Positions up to a multiple of a size; the new ones are zero."""
    rest = -x.shape[2] % size
    return jnp.pad(x, ((0, 0), (0, 0), (0, rest), (0, 0))) if rest else x


def join_blocks(x: Float[Array, "N Hkv nq G q w"], like: Float[Array, "N H T d"]) -> Float[Array, "N H T w"]:
    """The inverse of `split_blocks`, for an array with the batch, heads and positions of `like`."""
    num, heads, length, _ = like.shape
    x = x.swapaxes(2, 3).reshape(num, heads, -1, x.shape[-1])
    return x[:, :, :length]


def over_rows(function: Any, total: Any, arguments: Any, *, all_at_once: bool) -> tuple[Any, Any]:
    """Run `function(total, arguments of a row) -> (total, results)` over the rows of arrays `[N, Hkv, ...]`.

    Rows that are computed at once begin with a total of zero each; these are added up.

    Args:
        function: as above.
        total: pytree of arrays, or None.
        arguments: pytree of arrays `[N, Hkv, ...]`.
        all_at_once: without a loop over rows, so that the compiler can divide them over devices. Else as many as keep
            the machine busy.

    Returns:
        The last total, and the results `[N, Hkv, ...]`.
    """
    if all_at_once:
        return _at_once(jax.vmap(function, (None, 0)), total, arguments, num_axes=2)
    shape = jax.tree.leaves(arguments)[0].shape[:2]
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), arguments)
    at_once = rows_at_once(shape[0] * shape[1])
    if at_once is None:
        total, results = lax.scan(function, total, rows)
    else:
        chunks = jax.tree.map(lambda x: x.reshape(-1, at_once, *x.shape[1:]), rows)
        total, results = lax.scan(lambda total, chunk: _at_once(function, total, chunk, num_axes=1), total, chunks)
        results = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)
    return total, jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), results)


def _at_once(function: Any, total: Any, arguments: Any, num_axes: int) -> tuple[Any, Any]:
    zeros = jax.tree.map(jnp.zeros_like, total)
    parts, results = jax.vmap(function, (None, 0))(zeros, arguments)
    axes = tuple(range(num_axes))
    return jax.tree.map(lambda old, new: old + new.sum(axes), total, parts), results


def rows_at_once(num_rows: int) -> int | None:
    """How many rows are computed at once: None for one after the other, where one keeps the machine busy."""
    if jax.default_backend() == "cpu":
        return None
    return max(n for n in range(1, MAX_AT_ONCE + 1) if num_rows % n == 0)
