"""Programs compiled in the background, ahead of their first call, and once for each batch shape."""

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax
from jax.sharding import SingleDeviceSharding

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.devices.mesh import provide_cpu_devices
from transformer_jax.devices.processes import join_processes
from transformer_jax.devices.stopwatch import Stopwatch

Option: TypeAlias = int | bool | str
Options: TypeAlias = dict[str, Option]
# Options of the compiler for CPUs. docs/performance.md has the gain of each option on the oldest and the newest JAX.
STEP_OPTIONS: Options = {"xla_backend_optimization_level": 1}
# A program that runs once, or a few times: compiling it takes longer than running it.
RUN_ONCE_OPTIONS: Options = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
}

# Options of the compiler for GPUs, for all programs. Without products in Triton, whose candidates it would measure, it
# takes a seventh less time for a GPT-2, whose step is as fast.
GPU_OPTIONS: Options = {"xla_gpu_enable_triton_gemm": False}

# the numbers of glibc's settings, from its malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3

CACHE_DIR = "jax_compilation_cache_dir"  # JAX's setting
# below the home directory: the cache of programs for accelerators, if the setting is empty
CACHE = ".cache/transformer-jax"
CACHE_BYTES = 2**30  # after which the programs used longest ago are deleted

# Calls that a caller may be ahead of the devices. From 32 on, XLA lets the next call wait in a thread that a CPU device
# needs; if there are no more threads than devices, a device then waits forever for another's sum.
MAX_CALLS_AHEAD = 16

# Compiles programs in the order in which they are needed, on machines with many cores several at a time.
_compiler = ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 1) // 4))

Result = TypeVar("Result")


def known_options(options: Options, device: jax.Device | None = None) -> Options:
    """Return the options that the installed compiler knows.

    Options come and go with XLA releases; a missing option costs speed, but does not stop the run.

    Args:
        options: for CPUs; GPUs get `GPU_OPTIONS` in their place, and other devices none.
        device: runs the program; None for JAX's default device.
    """
    device = device or jax.local_devices()[0]
    by_platform = {"cpu": options, "gpu": GPU_OPTIONS}
    platform_options = by_platform.get(device.platform, {})
    return {
        name: value for name, value in platform_options.items() if is_known(name, value, device)
    }


@functools.cache
def is_known(name: str, value: Option, device: jax.Device) -> bool:
    """Whether the compiler for a device accepts an option, found by compiling a program without inputs."""
    try:
        options = {name: value}
        place = SingleDeviceSharding(device)
        jax.jit(lambda: 0, compiler_options=options, out_shardings=place).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def host_device() -> jax.Device | None:
    """The host's processor, if JAX's default devices are accelerators; None if they are not, or it is switched off."""
    if jax.default_backend() == "cpu":
        return None
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # of JAX_PLATFORMS
        return None


class Memory(NamedTuple):
    """Bytes that a compiled call takes on each device, as planned by the compiler."""

    held: int  # of the training state, the batches and the constants
    temporary: int  # of activations, gradients and everything else that exists only during the call

    def __str__(self) -> str:
        held, temporary = (f"{size / 2**20:,.1f} MiB" for size in self)
        return f"Memory of each device: {held} for state and batches, {temporary} inside a step"


class BackgroundProgram(Generic[Result]):
    """A function of pytrees of arrays, compiled in the background, once for each structure, shapes and types of them.

    Args:
        step: the function; `Devices.share` makes one that devices share.
        options: compiler options for CPUs, see `known_options`.
        shardings: shardings of the result; None lets the compiler choose.
        device: runs the function, and decides about the options; None for JAX's default devices.
        donate_state: whether the memory of the first argument may be used for the result.
        stopwatch: times `compile`, the time spent waiting for the compiler.
    """

    def __init__(
        self,
        step: Callable[..., Result],
        *,
        options: Options = STEP_OPTIONS,
        shardings: object = None,
        device: jax.Device | None = None,
        donate_state: bool = False,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        if shardings is None and device is not None:
            shardings = SingleDeviceSharding(device)
        self._jitted = jax.jit(
            step,
            donate_argnums=(0,) if donate_state else (),
            out_shardings=shardings,
            compiler_options=known_options(options, device),
        )
        self._first: jax.stages.Traced | None = None
        # by structure, shapes and types of the arguments
        self._executables: dict[Any, Future[jax.stages.Compiled]] = {}
        self._calls_ahead = 0
        self._stopwatch = stopwatch or Stopwatch("compile")

    def __call__(self, *arguments: object) -> Result:
        """Run the step, compiled for arguments of these shapes."""
        compiling = self.begin_to_compile(*arguments)
        with self._stopwatch.during("compile"):
            executable = compiling.result()
        # in the caller's thread, with its JAX settings
        result: Result = executable(*arguments)
        self._calls_ahead += 1
        if self._calls_ahead == MAX_CALLS_AHEAD:
            jax.block_until_ready(result)
            self._calls_ahead = 0
        return result

    def trace(self, *arguments: object) -> jax.stages.Traced:
        """Trace the step for arguments of these shapes; the trace can also be lowered for other platforms."""
        with self._stopwatch.during("compile"):
            return self._jitted.trace(*arguments)

    @functools.cached_property
    def flops(self) -> float | None:
        """FLOPs of the program's matrix products for the first shapes (`flops_of`); None before the first call."""
        from transformer_jax.devices.flops import flops_of  # only for the log

        return None if self._first is None else flops_of(self._first.jaxpr) or None

    @property
    def memory(self) -> Memory | None:
        """Memory of a call on each device, for the first shapes; None if the backend does not report it."""
        for compiling in self._executables.values():
            analysis = compiling.result().memory_analysis()
            if analysis is not None:
                return Memory(analysis.argument_size_in_bytes, analysis.temp_size_in_bytes)
        return None

    def begin_to_compile(self, *arguments: object) -> Future[jax.stages.Compiled]:
        """Start to compile in the background for arguments of these shapes, unless that has been done."""
        leaves, structure = jax.tree.flatten(arguments)
        key = structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        if key not in self._executables:
            with self._stopwatch.during("compile"):
                # in the caller's thread, with its JAX settings
                traced = self._jitted.trace(*arguments)
                lowered = traced.lower()
            self._first = self._first or traced
            self._executables[key] = _compiler.submit(lowered.compile)
        return self._executables[key]


@check_arguments
def prepare_jax(config: TrainingConfig | None = None) -> None:
    """Set up this process for training: devices for the CPU cores, other processes, the cache of programs, memory.

    These are global settings of JAX, and of the memory allocator (`keep_freed_memory`). Commands and the functions that
    run a whole experiment call it; no constructor does.

    Raises:
        InputError: see `join_processes`.
        OSError: the cache directory can't be created.
    """
    keep_freed_memory()
    provide_cpu_devices()
    if config is None:
        return
    join_processes(config)
    cache = config.compilation_cache
    if cache is not None:
        cache.mkdir(parents=True, exist_ok=True)  # JAX only warns if it can't
    elif jax.default_backend() != "cpu" and not jax.config.values[CACHE_DIR]:
        cache = _default_cache()
        jax.config.update("jax_compilation_cache_max_size", CACHE_BYTES)
    if cache is not None:
        jax.config.update(CACHE_DIR, str(cache.absolute()))
        # the default leaves out small programs
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def _default_cache() -> Path | None:
    """The cache below the home directory; None if there is no such directory, or it cannot be written."""
    try:
        cache = Path.home() / CACHE
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return cache


def keep_freed_memory() -> None:
    """Let glibc keep what a call of a program has freed, for the next call, instead of giving it back to the system.

    A program takes memory for its activations at each call and frees it at the end. From 32 MiB on glibc asks the
    system for it each time, which clears each page anew: up to a third of such a call on a CPU, as docs/performance.md
    measures. The main heap then keeps up to 256 MiB of freed memory, and a thread what it has freed. Other C libraries,
    and versions of glibc that refuse the first setting, are left as they are.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    libc = ctypes.CDLL(None)
    # more than that has no place in a heap of a thread
    if libc.mallopt(M_MMAP_THRESHOLD, 64 << 20):
        libc.mallopt(M_TRIM_THRESHOLD, 256 << 20)
        # else a thread returns each further heap as soon as it is empty
        libc.mallopt(M_TOP_PAD, 64 << 20)
