"""Metrics as weighted sums and sums of weights, which add up over steps and devices; norms by layer."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias, no_type_check

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.traverse_util import flatten_dict
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Shaped

from transformer_jax.argument_checks import broadcasts
from transformer_jax.data.batch import Batch
from transformer_jax.errors import InputError
from transformer_jax.mesh_axis import OfPart, sum_over_devices, sum_over_parts
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.outside_files import as_input_error
from transformer_jax.trees import Arrays, Variables, shown

# Values [B, ...] by metric, with weights of the same rank or a single weight (0 excludes an element).
Elements: TypeAlias = Mapping[str, tuple[ArrayLike, ArrayLike]]
UNWEIGHTED = "loss_function excludes every element; at least one must have a weight above 0"
# Weighted sum and sum of weights, by metric.
Sums: TypeAlias = dict[str, tuple[ArrayLike, ArrayLike]]
# Factors of the terms of a loss, by name. Each is a mean of its own, over all devices and all parts of a batch.
LossTerms: TypeAlias = Mapping[str, float]
Means: TypeAlias = dict[str, float]  # of each metric
NO_TERMS: LossTerms = MappingProxyType({})  # the loss is the metric `loss`
LEAST_WEIGHT = 1e-30  # replaces a weight of 0 in a division
# Computes the loss and metrics of a batch: takes parameters, batch, constants and key, and `train` by name. A task's is
# `Task.batch_loss`, which calls `prepare` with the constants, then the task's `loss_function`.
LossFunction: TypeAlias = Callable[..., Elements]


def weighted_sums(
    elements: Elements, valid: Bool[ArrayLike, " B"], may_be_single: Collection[str] = ()
) -> Sums:
    """Compute the weighted sum and the sum of weights of each metric, over the valid rows.

    Args:
        elements: values and weights, as a task's `loss_function` returns them.
        valid: False for rows that are padding.
        may_be_single: names of metrics whose value may be a single number, which belongs to no row.

    Raises:
        InputError: `elements` is not a mapping to pairs; values do not have a row for each entry of `valid`; or weights
            are neither a single number nor of the values' rank and broadcastable to them.
    """
    valid = jnp.asarray(valid)
    pairs = [*elements.items()] if isinstance(elements, Mapping) else []
    are_right = [
        isinstance(name, str) and isinstance(pair, tuple) and len(pair) == 2 for name, pair in pairs
    ]
    if not pairs or not all(are_right):
        returned: object = shown(elements)
        if pairs:
            returned = {name: shown(pair) for name, pair in pairs}
        raise InputError(
            f'loss_function returned {returned}; it must return {{"loss": (losses, weights)}}: for'
            " each metric a pair of values [B, ...], one for each element, and their weights"
        )
    sums: Sums = {}
    for name, (values, weights) in pairs:
        text = f"{name} of loss_function is {shown((values, weights))}; both must be numbers"
        with as_input_error(text, TypeError, ValueError):
            if name in may_be_single and jnp.ndim(values) == jnp.ndim(weights) == 0:
                sums[name] = jnp.multiply(values, weights), jnp.asarray(weights, jnp.float32)
            else:
                sums[name] = _weighted_sum(name, jnp.asarray(values), weights, valid)
    return sums


def _weighted_sum(
    name: str, values: Shaped[Array, "B ..."], weights: ArrayLike, valid: Bool[Array, " _"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    if values.shape[:1] != valid.shape:
        raise InputError(
            f"{name} of loss_function has values of shape {values.shape}; it must have one for"
            " each element, [B, ...], not their mean or sum"
        )
    shape = jnp.shape(weights)
    if len(shape) not in (0, values.ndim) or not broadcasts(shape, values.shape):
        raise InputError(
            f"{name} has weights of shape {shape} for values of shape"
            f" {values.shape}; there must be one weight for each value, or a single weight"
        )
    valid_rows = valid.reshape(-1, *[1] * (values.ndim - 1))  # [B 1 ...]
    weights = jnp.broadcast_to(weights, values.shape) * valid_rows.astype(jnp.float32)
    # Selected, not multiplied: an excluded element may be infinite.
    included = jnp.where(weights > 0, values, 0)
    return jnp.sum(included * weights), jnp.sum(weights)


@no_type_check  # JAX also constructs it from shapes and placeholders
class SumsOfSteps(flax.struct.PyTreeNode):
    """The sums of several steps in one array, which a compiled loop carries at less cost than many small ones."""

    array: Float[Array, "steps metrics 2"]
    names: tuple[str, ...] = flax.struct.field(pytree_node=False)  # of the metrics

    @classmethod
    def zeros(cls, num_steps: int, like: Sums) -> "SumsOfSteps":
        """Return zeros for steps with the metrics of `like`, which may hold shapes and dtypes instead of arrays."""
        dtype = jnp.result_type(*jax.tree.leaves(like))
        return cls(jnp.zeros((num_steps, len(like), 2), dtype), tuple(like))

    def with_step(self, i: Int[Array, ""], sums: Sums) -> "SumsOfSteps":
        """Return a copy with the sums of step `i` filled in."""
        row = jnp.array([sums[name] for name in self.names], self.array.dtype)
        return self.replace(array=self.array.at[i].set(row))

    def of_each(self, num_steps: int) -> list[Sums]:
        """Wait for the devices, and return the sums of each of the first `num_steps` steps as NumPy numbers."""
        rows = np.asarray(self.array)[:num_steps]
        return [dict(zip(self.names, map(tuple, row), strict=True)) for row in rows]


def means(steps: Sequence[Sums]) -> Means:
    """Compute the weighted mean of each metric over several steps, without metrics whose total weight is 0.

    Raises:
        InputError: there are no steps.
    """
    if not steps:
        raise InputError(
            "there are no batches to average over; a loader must give at least one batch"
        )
    means: Means = {}
    for name in sorted({name for sums in steps for name in sums}):
        sums_of_metric = [sums[name] for sums in steps if name in sums]
        totals, weights = zip(*sums_of_metric, strict=True)
        weight = np.sum(weights, dtype=np.float64)
        if weight:
            means[name] = float(np.sum(totals, dtype=np.float64) / weight)
    return means


def total_weights(
    loss: Callable[..., OfPart[Array]],
    batch: Batch,
    variables: Variables,
    num_parts: int,
    loss_terms: LossTerms,
) -> dict[str, Array]:
    """Compute the sum of weights of each term, over all devices and all parts of a batch; empty for a single part.

    Args:
        loss: computes the sums of a part's metrics; the compiler removes what the weights do not need.
        batch: of the step; if devices share it, the rows of one device.
        variables: of the model, before the step.
        num_parts: number of parts.
        loss_terms: factors of the terms.
    """
    if not loss_terms or num_parts == 1:  # a whole batch has its weights in its own sums
        return {}
    unweighted = partial(loss, weights=dict.fromkeys(loss_terms, 1.0))
    _, (sums, _) = sum_over_parts(unweighted, batch, variables, num_parts)
    return sum_over_devices(weights_of_terms(sums, loss_terms))


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


def share_of_loss(sums: Sums, loss_terms: LossTerms, weights: Mapping[str, ArrayLike]) -> Array:
    """Return what a part's elements contribute to the loss that is minimised.

    Without terms, that is their sum of losses. With terms, it is the sum of their sums, each times its factor and
    divided by its weight over all elements; a term without elements counts as 0. `weights` is empty if the part is the
    whole batch.
    """
    if not loss_terms:
        return jnp.asarray(sums["loss"][0])
    if not weights:
        weights = sum_over_devices(jax.lax.stop_gradient(weights_of_terms(sums, loss_terms)))
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


def means_of_steps(steps: Sequence[Sums], loss_terms: LossTerms) -> Means:
    """Compute `means` of several steps; if the loss has terms, `loss` is the sum of their means."""
    metrics = means(steps)
    if loss_terms:
        terms = [factor * metrics.get(name, 0.0) for name, factor in loss_terms.items()]
        metrics["loss"] = sum(terms)
    return metrics


def layer_norms(tree: Arrays) -> dict[str, Float[Array, ""]]:
    """Compute the Euclidean norm of all arrays of each layer together, by the layer's path.

    Args:
        tree: parameters, or a PyTree of the same structure; each of several stacked layers has its own norm.
    """
    layers: dict[str, list[ArrayLike]] = {}
    for path, array in flatten_dict(unstack_layers(tree), sep="/").items():
        layers.setdefault(layer_of(path), []).append(array)
    return {layer: optax.tree.norm(arrays) for layer, arrays in layers.items()}


def layer_of(path: str) -> str:
    """Return the path of a parameter's layer: up to the first part that ends with a number, or else the first part.

    Examples: `encoder/layers_0` of `encoder/layers_0/norm/scale`, `output_net` of `output_net/dense/bias`.
    """
    numbered = re.match(r"(.*?_\d+)(/|$)", path)
    return numbered[1] if numbered else path.partition("/")[0]
