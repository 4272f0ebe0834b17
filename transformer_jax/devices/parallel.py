"""The choice of the strategy by which devices share the work, and sums over devices inside a step."""

import contextlib
import os
from typing import TypeVar

import jax
from jax import lax

from transformer_jax.config import TrainingConfig
from transformer_jax.devices.packing import Packing
from transformer_jax.devices.partition_rules import AXES, DATA, FSDP, TENSOR
from transformer_jax.devices.replicated import Replicated
from transformer_jax.devices.sharded import Sharded
from transformer_jax.devices.strategy import Strategy
from transformer_jax.errors import InputError
from transformer_jax.mesh_axis import sharing_axes

MAX_PACKED_IN_SUM = 2**15  # elements; to copy a larger array costs more than packing it saves (docs/performance.md)

Tree = TypeVar("Tree")


def create_strategy(config: TrainingConfig) -> Strategy:
    """The strategy for these settings: sharded where the mesh has an axis beside `data`, or it is asked for.

    Raises:
        InputError: the mesh can't be read, there are not so many devices, or it does not divide the batch or the heads.
    """
    rows = config.batch_size // config.accumulate
    sizes = mesh_sizes(config)
    splits_params = any(sizes.get(axis, 1) > 1 for axis in (FSDP, TENSOR))
    if config.strategy == "replicated" and splits_params:
        raise InputError(f"strategy is replicated, but mesh is {config.mesh}; it may have the axis data alone")
    if config.strategy == "sharded" or splits_params:
        if not sizes:
            sizes = {DATA: Replicated(rows, config.num_devices).num_devices}
        return Sharded(sizes, remat=config.remat)
    return Replicated(rows, sizes.get(DATA, config.num_devices))


def mesh_sizes(config: TrainingConfig) -> dict[str, int]:
    """The sizes of the mesh's axes, from `config.mesh`: `data=4,fsdp=2`; none where it is None.

    Raises:
        InputError: as `create_strategy`.
    """
    if config.mesh is None:
        return {}
    sizes: dict[str, int] = {}
    for part in config.mesh.split(","):
        axis, equals, size = (text.strip() for text in part.partition("="))
        if not equals or axis not in AXES or axis in sizes or not size.isdecimal() or not 0 < int(size) < 2**31:
            raise InputError(
                f"mesh is {config.mesh!r}; it must be sizes of the axes {', '.join(AXES)}, as data=4,fsdp=2"
            )
        sizes[axis] = int(size)
    _check_mesh(config, sizes)
    return sizes


def _check_mesh(config: TrainingConfig, sizes: dict[str, int]) -> None:
    data, fsdp, tensor = (sizes.get(axis, 1) for axis in AXES)
    there = len(jax.devices())
    if data * fsdp * tensor > there:
        raise InputError(
            f"mesh is {config.mesh}, which takes {data * fsdp * tensor} devices; JAX has {there} of kind "
            f"{jax.devices()[0].device_kind} here, so mesh may be data={there}"
        )
    if jax.process_count() > 1 and data * fsdp * tensor < there:
        raise InputError(f"mesh is {config.mesh}; {jax.process_count()} processes use all their {there} devices")
    if config.num_devices not in (0, data * fsdp * tensor):
        raise InputError(
            f"num_devices is {config.num_devices}, and mesh is {config.mesh}, which takes {data * fsdp * tensor}; "
            "leave num_devices out"
        )
    rows = config.batch_size // config.accumulate
    if rows % (data * fsdp):
        parts = data * fsdp * config.accumulate
        below, above = config.batch_size // parts * parts, -(-config.batch_size // parts) * parts
        raise InputError(
            f"mesh is {config.mesh}; data · fsdp · accumulate, {parts}, must divide batch_size, {config.batch_size}: "
            f"the nearest that work are {' and '.join(str(size) for size in (below, above) if size)}"
        )
    if config.num_heads % tensor:
        fitting = [n for n in range(1, config.num_heads + 1) if config.num_heads % n == 0]
        raise InputError(
            f"mesh is {config.mesh}; tensor must divide num_heads, {config.num_heads}: it may be "
            f"{', '.join(map(str, fitting))}"
        )


def sum_over_devices(tree: Tree) -> Tree:
    """Add up the devices' arrays inside a step that they share; elsewhere the arrays themselves.

    The small ones travel as one vector: a sum for each array apart takes a small model longer than its whole step.
    """
    axes = sharing_axes()
    if not axes:
        return tree
    packing = Packing(tree, MAX_PACKED_IN_SUM)
    summed: Tree = packing.unpack(jax.tree.map(lambda array: lax.psum(array, axes), packing.pack(tree)))
    return summed


def provide_cpu_devices() -> None:
    """Let JAX see a device in each CPU core, if it has not begun to compute and was not told another number.

    XLA computes most operations of a small model on one core; two devices with half a batch each keep two busy. A
    computation on one device alone still has all cores for its large operations.
    """
    flag = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]  # JAX makes its flags at run time
    told = flag > 0 or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not told:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        with contextlib.suppress(RuntimeError):  # it has begun
            jax.config.update("jax_num_cpu_devices", cores)
