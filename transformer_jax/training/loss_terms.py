"""A loss of several terms: each has a mean of its own, over all devices and all parts of a batch."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import jax.numpy as jnp
from jax import Array

from transformer_jax.data.batch import Batch
from transformer_jax.errors import InputError
from transformer_jax.mesh_axis import sum_over_devices
from transformer_jax.training.metrics import Sums, means
from transformer_jax.training.parts import sum_over_parts

LossTerms: TypeAlias = Mapping[str, float]  # factors of the terms, by name
NO_TERMS: LossTerms = MappingProxyType({})  # the loss is the metric `loss`
LEAST_WEIGHT = 1e-30  # replaces a weight of 0 in a division


def total_weights(
    sums_of: Callable[[Batch], Sums], batch: Batch, num_parts: int, loss_terms: LossTerms
) -> dict[str, Array]:
    """Compute the sum of weights of each term, over all devices and all parts of a batch.

    Args:
        sums_of: computes the sums of a part's metrics; the compiler removes what the weights do not need.
        batch: of the step; if devices share it, the rows of one device.
        num_parts: number of parts.
        loss_terms: factors of the terms.
    """
    if not loss_terms:
        return {}

    def weights_of(part: Batch) -> dict[str, Array]:
        return weights_of_terms(sums_of(part), loss_terms)

    return sum_over_devices(sum_over_parts(weights_of, batch, num_parts))


def weights_of_terms(sums: Sums, loss_terms: LossTerms) -> dict[str, Array]:
    """Return the sum of weights of each term.

    Raises:
        InputError: a term is missing, or there is a metric `loss`.
    """
    if loss_terms.keys() - sums.keys() or "loss" in sums:
        raise InputError(
            f"loss_function returned {', '.join(sums)}; it must return each of loss_terms"
            f" ({', '.join(loss_terms)}), and no loss, which is their sum"
        )
    return {name: jnp.asarray(sums[name][1]) for name in loss_terms}


def share_of_loss(sums: Sums, loss_terms: LossTerms, weights: Mapping[str, Array]) -> Array:
    """Return what a part's elements contribute to the loss that is minimised.

    Without terms, that is their sum of losses. With terms, it is the sum of their sums, each times its factor and
    divided by its weight over all elements; a term without elements counts as 0.
    """
    if not loss_terms:
        return jnp.asarray(sums["loss"][0])
    share = jnp.zeros(())
    for name, factor in loss_terms.items():
        share += factor * sums[name][0] / jnp.maximum(weights[name], LEAST_WEIGHT)
    return share


def with_loss(sums: Sums, loss_terms: LossTerms) -> Sums:
    """Add the entry `loss` to sums over all elements if the loss has terms: their sum, with the weight 1."""
    if not loss_terms:
        return sums
    weights = weights_of_terms(sums, loss_terms)
    weight = jnp.sign(sum(weights.values()))  # 0 if no term has elements
    return sums | {"loss": (share_of_loss(sums, loss_terms, weights), weight)}


def means_of_steps(steps: Sequence[Sums], loss_terms: LossTerms) -> dict[str, float]:
    """Compute `means` of several steps; if the loss has terms, `loss` is the sum of their means."""
    found = means(steps)
    if loss_terms:
        found["loss"] = sum(factor * found.get(name, 0.0) for name, factor in loss_terms.items())
    return found
