"""Metrics as weighted sums and the sums of their weights, added over steps and devices; norms by layer."""

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

# By metric: values [B, ...], and weights of the same rank or one for all (0 leaves an element out).
Elements: TypeAlias = Mapping[str, tuple[ArrayLike, ArrayLike]]
UNWEIGHTED = "loss_function leaves every element out, so that there is no mean; some must have a weight above 0"
# By metric: the weighted sum, and the sum of the weights.
Sums: TypeAlias = dict[str, tuple[ArrayLike, ArrayLike]]


def weighted_sums(elements: Elements, valid: Bool[ArrayLike, " B"]) -> Sums:
    """Sum each metric's values, each with its weight, over the valid rows.

    Args:
        elements: what a task's `loss_function` returned.
        valid: rows that count.

    Raises:
        InputError: it is no mapping of pairs; values without a row for each of `valid`, or weights that are neither of
            the values' rank and broadcast to them, nor one number.
    """
    valid = jnp.asarray(valid)
    pairs = elements.values() if isinstance(elements, Mapping) else ()
    if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        found = {name: shown(pair) for name, pair in elements.items()} if pairs else shown(elements)
        raise InputError(
            f'loss_function returned {found}; it must return {{"loss": (losses, weights)}}: for each metric a pair of '
            "values [B, ...], one for each element, and their weights"
        )

    def sums(
        name: str, values: Shaped[Array, "B ..."], weights: ArrayLike
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        if values.shape[:1] != valid.shape:
            raise InputError(
                f"{name} of loss_function has values of shape {values.shape}; it must have those of each element, "
                "[B, ...], and no mean or sum of them"
            )
        fits = all(size in (1, needed) for size, needed in zip(jnp.shape(weights), values.shape, strict=False))
        if jnp.ndim(weights) not in (0, values.ndim) or not fits:
            raise InputError(
                f"{name} has weights of shape {jnp.shape(weights)} for values of shape {values.shape}; "
                "there must be one for each, or 1"
            )
        valid_rows = valid.reshape(-1, *[1] * (values.ndim - 1))  # [B 1 ...]
        weights = jnp.broadcast_to(weights, values.shape) * valid_rows.astype(jnp.float32)
        # Selected, not multiplied: an element that is left out may be infinite.
        return jnp.sum(jnp.where(weights > 0, values, 0) * weights), jnp.sum(weights)

    return {name: sums(name, jnp.asarray(values), weights) for name, (values, weights) in elements.items()}


@no_type_check  # at run time, where JAX also makes it of shapes and of placeholders
class SumsOfSteps(flax.struct.PyTreeNode):
    """The sums of several steps as one array, which a compiled loop carries at less cost than an array for each."""

    array: Float[Array, "steps metrics 2"]
    names: tuple[str, ...] = flax.struct.field(pytree_node=False)  # of the metrics

    @classmethod
    def zeros(cls, num_steps: int, like: Sums) -> "SumsOfSteps":
        """Zeros for steps with the metrics of `like`, which may be shapes and types."""
        dtype = jnp.result_type(*jax.tree.leaves(like))
        return cls(jnp.zeros((num_steps, len(like), 2), dtype), tuple(like))

    def with_step(self, i: Int[Array, ""], sums: Sums) -> "SumsOfSteps":
        """With the sums of step `i`."""
        row = jnp.stack([jnp.asarray(part, self.array.dtype) for name in self.names for part in sums[name]])
        return self.replace(array=self.array.at[i].set(row.reshape(-1, 2)))

    def of_each(self, num_steps: int) -> list[Sums]:
        """The sums of each of the first steps, as NumPy's numbers, when the devices have done them."""
        array = np.asarray(self.array)
        return [{name: tuple(pair) for name, pair in zip(self.names, row, strict=True)} for row in array[:num_steps]]


def means(steps: Sequence[Sums]) -> dict[str, float]:
    """Weighted mean of each metric that some element of several steps had a weight for.

    Raises:
        InputError: there are no steps.
    """
    if not steps:
        raise InputError("there is nothing to take the mean of; a loader must give at least one batch")
    totals = jax.tree.map(lambda *parts: np.sum(parts, dtype=np.float64), *steps)
    return {name: float(total / weight) for name, (total, weight) in totals.items() if weight}


def with_weight(sums: Sums) -> Sums:
    """The sums of the metrics that some element had a weight for; of the others there is no mean."""
    return {name: (total, weight) for name, (total, weight) in sums.items() if weight}


def layer_norms(tree: Arrays) -> dict[str, Float[Array, ""]]:
    """The Euclidean norm of all arrays of a layer together, by the layer's path.

    Args:
        tree: parameters, or shaped like them; layers that are stacked have norms of their own.
    """
    layers: dict[str, list[ArrayLike]] = {}
    for path, array in flatten_dict(unstack_layers(tree), sep="/").items():
        layers.setdefault(layer_of(path), []).append(array)
    return {layer: optax.tree.norm(arrays) for layer, arrays in layers.items()}


def layer_of(path: str) -> str:
    """`encoder/layers_0` for `encoder/layers_0/self_attn/query_proj/kernel`, `output_net` for `output_net/dense/bias`.

    The path up to the first part that ends with a number, or its first part.
    """
    parts = path.split("/")
    numbered = [place for place, part in enumerate(parts) if re.search(r"_\d+$", part)]
    return "/".join(parts[: numbered[0] + 1]) if numbered else parts[0]
