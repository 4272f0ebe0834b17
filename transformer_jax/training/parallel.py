"""Data parallelism: each device takes its part of every batch's rows, and has all parameters."""

import contextlib
import functools
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax.errors import InputError
from transformer_jax.nn.mesh_axis import AXIS, sharing_axes
from transformer_jax.training.packing import pack, unpack

FEWEST_ROWS = 8  # of a batch on one CPU device, where their number is not set: so few gain a small model nothing


def provide_cpu_devices() -> None:
    """Let JAX see a device in each CPU core, if it has not begun to compute and was not told another number.

    XLA computes most operations of a small model on one core; two devices with half a batch each keep two busy. What
    runs on one device alone still has all cores for its large operations.
    """
    told = jax.config.jax_num_cpu_devices > 0 or "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not told:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        with contextlib.suppress(RuntimeError):  # it has begun
            jax.config.update("jax_num_cpu_devices", cores)


def batch_mesh(batch_size: int, num_devices: int = 0) -> Mesh:
    """The devices that share batches of this size.

    Args:
        batch_size: rows of a batch.
        num_devices: that share it, a divisor of `batch_size`; 0 for one GPU or TPU, or for as many CPU devices as
            divide the batch into parts of at least `FEWEST_ROWS`.

    Raises:
        InputError: there are not so many devices.
    """
    devices = jax.local_devices()
    if num_devices > len(devices):
        raise InputError(
            f"num_devices is {num_devices}; JAX has {len(devices)} of kind {devices[0].device_kind} here (on a CPU one "
            "for each core, but one alone where it has begun to compute before)"
        )
    if num_devices == 0:
        most = min(len(devices), batch_size // FEWEST_ROWS) if devices[0].platform == "cpu" else 1
        num_devices = max((n for n in range(1, most + 1) if batch_size % n == 0), default=1)
    return Mesh(np.array(devices[:num_devices]), (AXIS,))


def shard(
    step: Callable[..., Any], mesh: Mesh, *, rows_axis: int = 0, returns_rows: bool = False
) -> Callable[..., Any]:
    """A `step(state, batch, *more)` that each device does with its rows of the batch, and with all of the rest.

    Args:
        step: the function.
        mesh: of the devices, from `batch_mesh`.
        rows_axis: of the batch's arrays, along which the rows lie.
        returns_rows: whether each device returns arrays that begin with its rows. If not, what they return must be the
            same on all: made from what `sum_over_devices` gave.
    """
    if mesh.size == 1:
        return step

    @functools.wraps(step)
    def sharded(state: Any, batch: Any, *more: Any) -> Any:
        whole, rows = PartitionSpec(), PartitionSpec(*[None] * rows_axis, AXIS)
        return jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(whole, rows, *[whole] * len(more)),
            out_specs=PartitionSpec(AXIS) if returns_rows else whole,
            check_vma=False,
        )(state, batch, *more)

    return sharded


def sum_over_devices(tree: Any) -> Any:
    """Add up the devices' arrays inside a sharded step; elsewhere the arrays themselves.

    The small ones travel as one vector: a sum for each array apart takes a small model longer than its whole step.
    """
    axes = sharing_axes()
    return unpack([lax.psum(array, axes) for array in pack(tree)], tree) if axes else tree


def on_all_devices(tree: Any, mesh: Mesh) -> Any:
    """The arrays, whole on each device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def shapes_on_all_devices(tree: Any, mesh: Mesh) -> Any:
    """The shapes and types of arrays that will be whole on each device of the mesh."""
    sharding = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), tree)


def divide_rows(tree: Any, mesh: Mesh, rows_axis: int = 0) -> Any:
    """The arrays, on each device of the mesh its rows, as `shard` wants a batch."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*[None] * rows_axis, AXIS)))


def on_first_device(tree: Any) -> Any:
    """The arrays of `on_all_devices` as the first one has them, without a copy."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree)
