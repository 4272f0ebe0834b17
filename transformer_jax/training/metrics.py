"""Metrics as weighted sums and sums of weights, which add up over steps and devices; norms by layer."""

import re
from collections.abc import Mapping, Sequence
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

from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Arrays, shown

# Values [B, ...] by metric, with weights of the same rank or a single weight (0 excludes an element).
Elements: TypeAlias = Mapping[str, tuple[ArrayLike, ArrayLike]]
UNWEIGHTED = "loss_function excludes every element; at least one must have a weight above 0"
# Weighted sum and sum of weights, by metric.
Sums: TypeAlias = dict[str, tuple[ArrayLike, ArrayLike]]


def weighted_sums(elements: Elements, valid: Bool[ArrayLike, " B"]) -> Sums:
    """Compute the weighted sum and the sum of weights of each metric, over the valid rows.

    Args:
        elements: values and weights, as a task's `loss_function` returns them.
        valid: False for rows that are padding.

    Raises:
        InputError: `elements` is not a mapping to pairs; values do not have a row for each entry of `valid`; or weights
            are neither a single number nor of the values' rank and broadcastable to them.
    """
    valid = jnp.asarray(valid)
    pairs = elements.values() if isinstance(elements, Mapping) else ()
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        returned: object = shown(elements)
        if pairs:
            returned = {name: shown(pair) for name, pair in elements.items()}
        raise InputError(
            f'loss_function returned {returned}; it must return {{"loss": (losses, weights)}}: for'
            " each metric a pair of values [B, ...], one for each element, and their weights"
        )
    return {
        name: _weighted_sum(name, jnp.asarray(values), weights, valid)
        for name, (values, weights) in elements.items()
    }


def _weighted_sum(
    name: str, values: Shaped[Array, "B ..."], weights: ArrayLike, valid: Bool[Array, " _"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    if values.shape[:1] != valid.shape:
        raise InputError(
            f"{name} of loss_function has values of shape {values.shape}; it must have one for"
            " each element, [B, ...], not their mean or sum"
        )
    fits = jnp.ndim(weights) in (0, values.ndim)
    for size, num_values in zip(jnp.shape(weights), values.shape, strict=False):
        fits = fits and size in (1, num_values)
    if not fits:
        raise InputError(
            f"{name} has weights of shape {jnp.shape(weights)} for values of shape"
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
        numbers = [number for name in self.names for number in sums[name]]
        row = jnp.stack([jnp.asarray(number, self.array.dtype) for number in numbers])
        return self.replace(array=self.array.at[i].set(row.reshape(-1, 2)))

    def of_each(self, num_steps: int) -> list[Sums]:
        """Wait for the devices, and return the sums of each of the first `num_steps` steps as NumPy numbers."""
        array = np.asarray(self.array)
        return [
            {name: tuple(pair) for name, pair in zip(self.names, row, strict=True)}
            for row in array[:num_steps]
        ]


def means(steps: Sequence[Sums]) -> dict[str, float]:
    """Compute the weighted mean of each metric over several steps, without metrics whose total weight is 0.

    Raises:
        InputError: there are no steps.
    """
    if not steps:
        raise InputError(
            "there are no batches to average over; a loader must give at least one batch"
        )
    means: dict[str, float] = {}
    for name in sorted({name for sums in steps for name in sums}):
        totals, weights = zip(*[sums[name] for sums in steps if name in sums], strict=True)
        weight = np.sum(weights, dtype=np.float64)
        if weight:
            means[name] = float(np.sum(totals, dtype=np.float64) / weight)
    return means


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
    parts = path.split("/")
    for place, part in enumerate(parts):
        if re.search(r"_\d+$", part):
            return "/".join(parts[: place + 1])
    return parts[0]
