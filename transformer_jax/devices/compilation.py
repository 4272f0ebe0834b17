"""Programs compiled in the background, ahead of their first call, and once for each batch shape."""

import ctypes
import functools
import platform
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import jax

from transformer_jax.argument_checks import check_arguments
from transformer_jax.config import TrainingConfig
from transformer_jax.devices.mesh import provide_cpu_devices
from transformer_jax.devices.processes import join_processes
from transformer_jax.devices.stopwatch import Stopwatch

Option: TypeAlias = int | bool | str
# options by backend; a backend that is not listed gets none
OptionTable: TypeAlias = dict[str, dict[str, Option]]

# docs/performance.md has the gain of each option on the oldest and the newest JAX.
STEP_OPTIONS: OptionTable = {"cpu": {"xla_backend_optimization_level": 1}}
# A program that runs once, or a few times: compiling it takes longer than running it.
RUN_ONCE_OPTIONS: OptionTable = {
    "cpu": {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
}

# the numbers of glibc's settings, from its malloc.h
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3

# Calls that a caller may be ahead of the devices. From 32 on, XLA lets the next call wait in a thread that a CPU device
# needs; if there are no more threads than devices, a device then waits forever for another's sum.
MAX_CALLS_AHEAD = 16

# one program after another, in the order in which they are needed
_compiler = ThreadPoolExecutor(max_workers=1)

Result = TypeVar("Result")


def known_options(table: Mapping[str, Mapping[str, Option]]) -> dict[str, Option]:
    """Return the options of a table for this backend that the installed compiler knows.

    Options come and go with XLA releases; a missing option costs speed, but does not stop the run.
    """
    options = table.get(jax.default_backend(), {})
    return {name: value for name, value in options.items() if is_known(name, value)}


@functools.cache
def is_known(name: str, value: Option) -> bool:
    """Whether the compiler accepts an option, found by compiling a program without inputs."""
    try:
        jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


class Memory(NamedTuple):
    """Bytes that a compiled call takes on each device, as planned by the compiler."""

    held: int  # of the training state, the batches and the constants
    temporary: int  # of activations, gradients and everything else that exists only during the call

    def line(self, limit: int | None) -> str:
        """Describe a call's memory, and whether it fits into `limit` bytes; None if the device does not report it."""
        held, temporary, space = (f"{size / 2**20:,.1f} MiB" for size in (*self, limit or 0))
        needed = f"Memory of each device: {held} for state and batches, {temporary} inside a step"
        fits = "which fits" if sum(self) <= (limit or 0) else "which does NOT fit"
        return needed if limit is None else f"{needed}, {fits} into its {space}"


class BackgroundProgram(Generic[Result]):
    """A function `(state, batch, *more)`, compiled in the background, once for each shape of its second argument.

    Args:
        step: the function; `Devices.share` makes one that devices share.
        options: compiler options by backend; unknown ones are left out.
        shardings: shardings of the result; None lets the compiler choose.
        donate_state: whether the state's memory may be used for the result.
        stopwatch: times `compile`, the time spent waiting for the compiler.
    """

    def __init__(
        self,
        step: Callable[..., Result],
        *,
        options: OptionTable = STEP_OPTIONS,
        shardings: object = None,
        donate_state: bool = False,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self._jitted = jax.jit(
            step,
            donate_argnums=(0,) if donate_state else (),
            out_shardings=shardings,
            compiler_options=known_options(options),
        )
        self._first: jax.stages.Lowered | None = None
        # by shapes and types of the batch
        self._executables: dict[Any, Future[jax.stages.Compiled]] = {}
        self._calls_ahead = 0
        self._stopwatch = Stopwatch("compile") if stopwatch is None else stopwatch

    def __call__(self, state: object, batch: object, *more: object) -> Result:
        """Run the step, compiled for the shapes of this batch; the other arguments usually keep theirs."""
        compiling = self.begin_to_compile(state, batch, *more)
        with self._stopwatch.during("compile"):
            executable = compiling.result()
        result: Result
        try:
            # in the caller's thread, with its JAX settings
            result = executable(state, batch, *more)
        except TypeError:
            # Another argument has changed, such as parameters that were cast: JAX recompiles.
            result = self._jitted(state, batch, *more)
        self._calls_ahead += 1
        if self._calls_ahead == MAX_CALLS_AHEAD:
            jax.block_until_ready(result)
            self._calls_ahead = 0
        return result

    def trace(self, state: object, batch: object, *more: object) -> jax.stages.Traced:
        """Trace the step for arguments of these shapes; the trace can also be lowered for other platforms."""
        with self._stopwatch.during("compile"):
            return self._jitted.trace(state, batch, *more)

    @functools.cached_property
    def flops(self) -> float | None:
        """FLOPs of the program for the first shape, with a loop's body counted once; None if unknown.

        Only available after the first call.
        """
        analysis = None if self._first is None else self._first.cost_analysis()
        return None if not analysis else float(analysis.get("flops", 0.0)) or None

    @property
    def memory(self) -> Memory | None:
        """Memory of a call on each device, for the first shape; None if the backend does not report it."""
        analysis = (
            next(iter(self._executables.values())).result().memory_analysis()
            if self._executables
            else None
        )
        return (
            None
            if analysis is None
            else Memory(analysis.argument_size_in_bytes, analysis.temp_size_in_bytes)
        )

    def begin_to_compile(
        self, state: object, batch: object, *more: object
    ) -> Future[jax.stages.Compiled]:
        """Start to compile in the background for a batch of these shapes, unless that has been done."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        if shapes not in self._executables:
            with self._stopwatch.during("compile"):
                # in the caller's thread, with its JAX settings
                lowered = self._jitted.lower(state, batch, *more)
            self._first = self._first or lowered
            self._executables[shapes] = _compiler.submit(lowered.compile)
        return self._executables[shapes]


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
    if config is not None:
        join_processes(config)
    if config is not None and config.compilation_cache is not None:
        config.compilation_cache.mkdir(parents=True, exist_ok=True)  # JAX only warns where it can't
        jax.config.update("jax_compilation_cache_dir", str(config.compilation_cache.absolute()))
        # the default leaves out small programs
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


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
