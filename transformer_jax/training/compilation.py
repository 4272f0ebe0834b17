"""Compile in the background: a step, once for each shape of batch; what runs only once. Keep what was compiled."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from transformer_jax.training.parallel import shard

# Calls that a caller may be ahead of the devices. From 32 on, XLA lets the next one wait in a thread that a CPU device
# needs; where there are no more threads than devices, one of them waits for ever for another's sum.
MOST_CALLS_AHEAD = 16

# What the compiler need not do for what runs only once. Of the two, the second halves what the first has left.
RUNS_ONCE = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}

_compiler = ThreadPoolExecutor(max_workers=1)  # one after another: what is needed first is begun first


class CompiledStep:
    """`jax.jit` of a `step(state, batch, *more)` whose compilations are counted and timed apart from its runs.

    Args:
        step: the function.
        mesh: devices that share the rows of the batch; None for whatever the arguments lie on.
        rows_axis: of the batch's arrays, along which the rows are.
        donate_state: whether the state's memory may be used for what is returned.
    """

    def __init__(
        self, step: Callable[..., Any], mesh: Mesh | None = None, *, rows_axis: int = 0, donate_state: bool = False
    ) -> None:
        if mesh is not None:
            step = shard(step, mesh, rows_axis=rows_axis)
        # On CPUs the levels above the first, LLVM's, take longer and make no step faster, and small ones slower.
        level = {"xla_backend_optimization_level": 1} if jax.default_backend() == "cpu" else None
        self._jitted = jax.jit(step, donate_argnums=(0,) if donate_state else (), compiler_options=level)
        self._executables: dict[Any, Future] = {}  # shapes and types of the batch -> executable
        self._calls_ahead = 0
        self.seconds = 0.0  # that a caller has spent on compiling, or on waiting for it

    @property
    def count(self) -> int:
        """Number of compilations."""
        return len(self._executables)

    def __call__(self, state: Any, batch: Any, *more: Any) -> Any:
        """Run the step, compiled for the shapes of this batch; the other arguments keep theirs."""
        compiling = self.begin_to_compile(state, batch, *more)
        start = time.perf_counter()
        executable = compiling.result()
        self.seconds += time.perf_counter() - start
        result = executable(state, batch, *more)
        self._calls_ahead += 1
        if self._calls_ahead == MOST_CALLS_AHEAD:
            jax.block_until_ready(result)
            self._calls_ahead = 0
        return result

    def begin_to_compile(self, state: Any, batch: Any, *more: Any) -> Future:
        """Compile in the background for a batch of these shapes, if that has not begun yet; the executable to be."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        if shapes not in self._executables:
            start = time.perf_counter()
            lowered = self._jitted.lower(state, batch, *more)  # here, where the caller's settings of JAX hold
            self.seconds += time.perf_counter() - start
            self._executables[shapes] = _compiler.submit(lowered.compile)
        return self._executables[shapes]


def begin_to_run_once(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Callable[[], Any]]:
    """Compile in the background what runs in no time: the compiler leaves most of its work undone.

    Returns:
        The shapes of the result, and what waits for the compiler and gives the result.
    """
    lowered = jax.jit(function, compiler_options=RUNS_ONCE).lower(*arguments)
    compiling = _compiler.submit(lowered.compile)
    return lowered.out_info, lambda: compiling.result()(*arguments)  # run by the caller, whose settings hold


def keep_compiled_programs(directory: Path) -> None:
    """Let JAX's persistent compilation cache, of the whole process, lie in this directory."""
    jax.config.update("jax_compilation_cache_dir", str(directory.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)  # the default leaves out most of small models
