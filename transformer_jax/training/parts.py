"""Parts of a batch, which are computed one after another to save memory."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.data.batch import Batch
from transformer_jax.mesh_axis import part_of_rows

Sum = TypeVar("Sum")


def sum_over_parts(function: Callable[[Batch], Sum], batch: Batch, num_parts: int) -> Sum:
    """Add up the arrays that a function returns for each of `num_parts` equal parts of a batch."""
    if num_parts == 1:
        return function(batch)

    def add(total: Sum, number_and_part: tuple[Array, Batch]) -> tuple[Sum, None]:
        number, part = number_and_part
        with part_of_rows(number, num_parts):
            of_part = function(part)
        return jax.tree.map(jnp.add, total, of_part), None

    parts = jax.tree.map(lambda rows: rows.reshape(num_parts, -1, *rows.shape[1:]), batch)
    first_part = jax.tree.map(lambda rows: rows[0], parts)
    with part_of_rows(0, num_parts):
        shapes = jax.eval_shape(function, first_part)
    zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
    total, _ = jax.lax.scan(add, zeros, (jnp.arange(num_parts), parts))
    return total
