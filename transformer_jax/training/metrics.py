"""Metrics as weighted sums and the sums of their weights: added over steps and devices, divided once."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Shaped

from transformer_jax.errors import InputError

# By metric: values [B, ...], and weights of the same rank or one for all (0 leaves an element out).
Elements: TypeAlias = Mapping[str, tuple[ArrayLike, ArrayLike]]
# By metric: the weighted sum, and the sum of the weights.
Sums: TypeAlias = dict[str, tuple[ArrayLike, ArrayLike]]


def weighted_sums(elements: Elements, valid: Bool[ArrayLike, " B"]) -> Sums:
    """Sum each metric's values, each with its weight, over the valid rows.

    Raises:
        InputError: values without a row for each of `valid`, or weights that are neither of the values' rank and
            broadcast to them, nor one number.
    """
    valid = jnp.asarray(valid)

    def sums(values: Shaped[Array, "B ..."], weights: ArrayLike) -> tuple[Float[Array, ""], Float[Array, ""]]:
        if values.shape[:1] != valid.shape:
            raise InputError(f"values of shape {values.shape} for {valid.shape} valid; there must be a row for each")
        fits = all(size in (1, needed) for size, needed in zip(jnp.shape(weights), values.shape, strict=False))
        if jnp.ndim(weights) not in (0, values.ndim) or not fits:
            raise InputError(
                f"weights of shape {jnp.shape(weights)} for values of shape {values.shape}; one for each, or 1"
            )
        valid_rows = valid.reshape(-1, *[1] * (values.ndim - 1))  # [B 1 ...]
        weights = jnp.broadcast_to(weights, values.shape) * valid_rows.astype(jnp.float32)
        # Selected, not multiplied: an element that is left out may be infinite.
        return jnp.sum(jnp.where(weights > 0, values, 0) * weights), jnp.sum(weights)

    return {name: sums(jnp.asarray(values), weights) for name, (values, weights) in elements.items()}


def means(steps: Sequence[Sums]) -> dict[str, float]:
    """Weighted mean of each metric over the sums of several steps.

    Raises:
        InputError: there are no steps.
    """
    if not steps:
        raise InputError("steps is empty; there must be at least one step to take the mean of")
    totals = jax.tree.map(lambda *parts: np.sum(parts, dtype=np.float64), *steps)
    return {name: float(total / weight) for name, (total, weight) in totals.items()}


def with_weight(sums: Sums) -> Sums:
    """The sums of the metrics that some element had a weight for; of the others there is no mean."""
    return {name: (total, weight) for name, (total, weight) in sums.items() if weight}
