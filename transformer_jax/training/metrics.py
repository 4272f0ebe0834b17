"""Metrics as sums with their weights: added up over steps and devices, divided once."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Shaped

Elements = Mapping[str, tuple[ArrayLike, ArrayLike]]  # name -> (values [B, ...], weights that broadcast to them)
Sums = dict[str, tuple[ArrayLike, ArrayLike]]  # name -> (weighted sum, sum of the weights)


class Batch(NamedTuple):
    """A batch of the one size that is compiled, and which of its rows are real."""

    data: Any  # pytree of arrays [B, ...], as the loader gave it but for the padding
    valid: Bool[ArrayLike, "*steps B"]


def pad_batch(data: Any, batch_size: int) -> Batch:
    """Bring a shorter batch to `batch_size` rows by repeating its last one.

    The copies are real data, so that nothing computed from them is infinite, and count as invalid.
    """
    rows = len(jax.tree.leaves(data)[0])
    valid = np.arange(max(rows, batch_size)) < rows
    if rows < batch_size:
        data = jax.tree.map(lambda a: np.concatenate([a, np.repeat(a[-1:], batch_size - rows, axis=0)]), data)
    return Batch(data, valid)


def stack_batches(data: Any, batch_size: int, num_batches: int) -> tuple[Batch, np.int32]:
    """Split a few batches that lie behind each other, the last perhaps short, and fill up to `num_batches`.

    Returns:
        Arrays `[num_batches, B, ...]`, and how many of the batches are real.
    """
    rows = len(jax.tree.leaves(data)[0])
    padded = pad_batch(data, num_batches * batch_size)
    batches = jax.tree.map(lambda array: array.reshape(num_batches, batch_size, *array.shape[1:]), padded)
    return batches, np.int32(-(-rows // batch_size))


def weighted_sums(elements: Elements, valid: Bool[ArrayLike, " B"]) -> Sums:
    """Sum each metric's values, each with its weight, over the valid rows.

    Raises:
        ValueError: weights that are neither of the values' rank nor one number.
    """

    def sums(values: Shaped[ArrayLike, "B ..."], weights: ArrayLike) -> tuple[Float[Array, ""], Float[Array, ""]]:
        if jnp.ndim(weights) not in (0, values.ndim):
            raise ValueError(
                f"weights of shape {jnp.shape(weights)} for values of shape {values.shape}; one for each, or 1"
            )
        valid_rows = valid.reshape(-1, *[1] * (values.ndim - 1))  # [B 1 ...]
        weights = jnp.broadcast_to(weights, values.shape) * valid_rows.astype(jnp.float32)
        # Selected, not multiplied: what is left out may be infinite.
        return jnp.sum(jnp.where(weights > 0, values, 0) * weights), jnp.sum(weights)

    return {name: sums(values, weights) for name, (values, weights) in elements.items()}


def means(steps: Sequence[Sums]) -> dict[str, float]:
    """Weighted mean of each metric over several steps' sums."""
    totals = jax.tree.map(lambda *parts: np.sum(parts, dtype=np.float64), *steps)
    return {name: float(total / weight) for name, (total, weight) in totals.items()}
