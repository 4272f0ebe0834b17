"""Which axis of a parameter is split over which axis of the mesh: a table, and a rule for all others."""

import math
import re
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

DATA, FSDP, TENSOR = AXES = "data", "fsdp", "tensor"
MIN_SIZE = 2**10  # elements; smaller arrays stay whole

# By the end of a parameter's path, what its axes are split over. Tensor parallelism (Shoeybi et al. 2019): each device
# computes some of the heads and of the hidden units, and the products that join them are summed.
RULES: Mapping[str, Sequence[str | None]] = {
    r"(query|key|value)_proj/kernel": (FSDP, TENSOR),
    r"output_proj/kernel": (TENSOR, FSDP),
    r"feed_forward/(expand|gate)/kernel": (FSDP, TENSOR),
    r"feed_forward/contract/kernel": (TENSOR, FSDP),
}


def spec_of(
    path: str, shape: Sequence[int], mesh: Mesh | AbstractMesh, rules: Mapping[str, Sequence[str | None]] = RULES
) -> PartitionSpec:
    """How a parameter is split.

    A parameter that no rule names is split along its largest axis that `fsdp` divides. An axis whose
    size is no multiple of the mesh axis stays whole.

    Args:
        path: of the parameter, `encoder/layers_0/self_attn/query_proj/kernel`.
        shape: of the parameter.
        mesh: with the axes `data`, `fsdp` and `tensor`.
        rules: by regular expressions for the ends of paths.
    """
    if math.prod(shape) < MIN_SIZE:
        return PartitionSpec()
    for ending, axes in rules.items():
        # An array that an optimizer keeps of a parameter may have fewer axes.
        if len(axes) == len(shape) and re.search(rf"(^|/){ending}$", path):
            return _where_it_divides(shape, axes, mesh)
    largest = max(
        (axis for axis in range(len(shape)) if shape[axis] % mesh.shape[FSDP] == 0), key=shape.__getitem__, default=None
    )
    return _where_it_divides(shape, [FSDP if axis == largest else None for axis in range(len(shape))], mesh)


def _where_it_divides(shape: Sequence[int], axes: Sequence[str | None], mesh: Mesh | AbstractMesh) -> PartitionSpec:
    names = [
        name if name is not None and mesh.shape[name] > 1 and size % mesh.shape[name] == 0 else None
        for size, name in zip(shape, axes, strict=True)
    ]
    return PartitionSpec(*names)


def path_name(path: tuple[jax.tree_util.KeyEntry, ...]) -> str:
    """`encoder/layers_0/norm/scale` for the path of a leaf."""
    return jax.tree_util.keystr(path, simple=True, separator="/")
