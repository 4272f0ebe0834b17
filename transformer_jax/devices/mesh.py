"""Choose the devices for a training run from its settings."""

import contextlib
import math
import os
import re

import jax
import numpy as np
from jax.sharding import Mesh

from transformer_jax.config import TrainingConfig
from transformer_jax.devices.sharing import Devices
from transformer_jax.devices.specs import AXES, DATA, FSDP, TENSOR, SpecOf, default_spec
from transformer_jax.errors import InputError

NUM_CPU_DEVICES = "jax_num_cpu_devices"  # the setting of JAX
# Rows of a batch per CPU device, if the number of devices is not set: a small model gains nothing with fewer.
MIN_ROWS = 6


def choose_devices(config: TrainingConfig, spec_of: SpecOf = default_spec) -> Devices:
    """Choose the devices for these settings.

    XLA partitions the step if the mesh splits an axis other than `data`, if `strategy` is `sharded`, or if `spec_of` is
    not the default. With several processes, a run uses all devices of all processes.

    Raises:
        InputError: the mesh can't be parsed, has too many devices, or does not divide the batch or the heads.
    """
    sizes = mesh_sizes(config)
    splits_params = sizes[FSDP] * sizes[TENSOR] > 1
    if config.strategy == "replicated" and splits_params:
        raise InputError(
            f"strategy is replicated, but mesh is {config.mesh}; it may only have the axis data"
        )
    shape = [sizes[axis] for axis in AXES]
    devices = np.array(jax.devices()[: math.prod(shape)])
    mesh = Mesh(devices.reshape(shape), AXES)
    is_sharded = config.strategy == "sharded" or splits_params or spec_of is not default_spec
    return Devices(mesh, is_sharded, spec_of)


def own_device() -> Devices:
    """Return a single device of this process, for work that each process does in full."""
    return Devices(Mesh(np.array(jax.local_devices()[:1]).reshape(1, 1, 1), AXES))


def num_data_devices(rows: int, num_devices: int = 0) -> int:
    """Return the number of devices over which a single process splits its batches.

    Args:
        rows: number of rows in a batch.
        num_devices: requested number; 0 for one GPU or TPU, or for as many CPU devices as divide the batch into equal
            parts of at least `MIN_ROWS` rows.

    Raises:
        InputError: there are fewer devices than requested.
    """
    devices = jax.devices()
    num_available = len(devices)
    if num_devices > num_available:
        raise InputError(
            f"num_devices is {num_devices}; JAX has {num_available} of kind {devices[0].device_kind}"
            " here; on a CPU, prepare_jax gives it one for each core, if it is called before"
            " anything is computed"
        )
    if num_devices > 0:
        return num_devices
    if devices[0].platform != "cpu":
        return 1
    number = max(1, min(num_available, rows // MIN_ROWS))
    while rows % number:
        number -= 1
    return number


def mesh_sizes(config: TrainingConfig) -> dict[str, int]:
    """Return the sizes of all axes of the mesh, which `config.mesh` gives, for example as `data=4,fsdp=2`.

    If `config.mesh` is None, only `data` is larger than 1: all devices of several processes, or those that
    `num_data_devices` chooses for a single process.

    Raises:
        InputError: see `choose_devices`.
    """
    sizes = dict.fromkeys(AXES, 1)
    if config.mesh is None and jax.process_count() == 1:
        rows = config.batch_size // config.accumulate
        return sizes | {DATA: num_data_devices(rows, config.num_devices)}
    mesh = f"{DATA}={jax.device_count()}" if config.mesh is None else config.mesh
    given_sizes: dict[str, int] = {}
    for part in mesh.split(","):
        # e.g. ` data = 4`
        match = re.fullmatch(r"\s*(\w+)\s*=\s*0*([1-9]\d{0,8})\s*", part)
        if match is None or match[1] not in AXES or match[1] in given_sizes:
            raise InputError(
                f"mesh is {mesh!r}; it must give sizes of the axes {', '.join(AXES)}, e.g."
                " data=4,fsdp=2"
            )
        given_sizes[match[1]] = int(match[2])
    sizes |= given_sizes
    _check_mesh(config, mesh, **sizes)
    return sizes


def provide_cpu_devices() -> None:
    """Give JAX one device per CPU core, unless it has begun to compute or the number is already configured.

    XLA computes most operations of a small model on one core; two devices with half a batch each keep two cores busy. A
    computation on a single device can still use all cores for its large operations.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if getattr(jax.config, NUM_CPU_DEVICES) > 0 or "host_platform_device_count" in flags:
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with contextlib.suppress(RuntimeError):  # JAX has begun to compute
        jax.config.update(NUM_CPU_DEVICES, cores)


def _check_mesh(config: TrainingConfig, mesh: str, data: int, fsdp: int, tensor: int) -> None:
    devices = jax.devices()
    num_available = len(devices)
    size = data * fsdp * tensor
    leaves_devices = size < num_available
    if size > num_available or (leaves_devices and jax.process_count() > 1):
        raise InputError(
            f"mesh is {mesh}, which takes {size} devices; JAX has {num_available} of kind"
            f" {devices[0].device_kind} here; use at most that many (with several processes,"
            f" all of them), e.g. data={num_available}"
        )
    if config.num_devices not in (0, size):
        raise InputError(
            f"num_devices is {config.num_devices}, and mesh is {mesh}, which takes {size}; leave"
            " num_devices out"
        )
    parts = data * fsdp * config.accumulate
    if config.batch_size % parts:
        above = (config.batch_size // parts + 1) * parts
        raise InputError(
            f"mesh is {mesh}; data · fsdp · accumulate, {parts}, must divide batch_size,"
            f" {config.batch_size}; the next larger batch size that works is {above}"
        )
    if config.num_heads % tensor:
        raise InputError(f"mesh is {mesh}; tensor must divide num_heads, {config.num_heads}")
