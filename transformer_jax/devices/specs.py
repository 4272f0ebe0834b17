"""Partition specs, which split array axes over mesh axes: a table for parameters, and a rule for all other arrays."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from transformer_jax.nn.layer_stacks import STACKED, layer_name

DATA, FSDP, TENSOR = AXES = "data", "fsdp", "tensor"
KeyPath = tuple[Any, ...]  # of a leaf in a tree, as JAX gives it
SpecOf = Callable[[str, Sequence[int], Mesh], PartitionSpec]  # of an array's path and shape
MIN_SIZE = 2**10  # elements; smaller arrays stay whole

# Mesh axes of a parameter's axes, by the end of its path. Tensor parallelism (Shoeybi et al. 2019): each device
# computes some of the heads and of the hidden units, and the products that join them are summed.
RULES: Mapping[str, Sequence[str | None]] = {
    r"(query|key|value)_proj/kernel": (FSDP, TENSOR),
    r"output_proj/kernel": (TENSOR, FSDP),
    r"feed_forward/(expand|gate)/kernel": (FSDP, TENSOR),
    r"feed_forward/contract/kernel": (TENSOR, FSDP),
}


def default_spec(path: str, shape: Sequence[int], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    """Return how an array of a training state is split.

    An array that the optimizer keeps for a parameter is split like the parameter, since rules match the end of a path,
    which is the same for both. An array that no rule matches is split along its largest axis that `fsdp` divides. An
    axis whose size is not a multiple of the mesh axis is not split, nor is the axis of stacked layers.

    Args:
        path: of the array in the state, `params/encoder/layers_0/self_attn/query_proj/kernel`.
        shape: of the array.
        mesh: with the axes `data`, `fsdp` and `tensor`.
    """
    if STACKED in path.split("/"):
        path_of_layer = path.replace(STACKED, layer_name(0))
        return PartitionSpec(None, *default_spec(path_of_layer, shape[1:], mesh))
    if math.prod(shape) < MIN_SIZE:
        return PartitionSpec()
    axes = _axes_of_rule(path, len(shape))
    if axes is None:
        axes = [None] * len(shape)
        divisible_sizes = [0 if size % mesh.shape[FSDP] else size for size in shape]
        # If `fsdp` divides no size, the loop below resets the axis.
        axes[divisible_sizes.index(max(divisible_sizes))] = FSDP
    for number, axis in enumerate(axes):
        is_split = axis is not None and mesh.shape[axis] > 1
        if not is_split or shape[number] % mesh.shape[axis]:
            axes[number] = None
    return PartitionSpec(*axes)


def _axes_of_rule(path: str, rank: int) -> list[str | None] | None:
    """Return the mesh axes by which the first rule that matches splits an array; None if none does."""
    for ending, rule in RULES.items():
        # An array that an optimizer keeps for a parameter may have fewer axes.
        if len(rule) == rank and re.search(rf"(^|/){ending}$", path):
            return [*rule]
    return None


def path_name(path: KeyPath) -> str:
    """Return a leaf's path as a string, such as `encoder/layers_0/norm/scale`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
