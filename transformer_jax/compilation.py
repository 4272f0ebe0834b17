"""Compile a step once for each shape of batch, and know what that cost; keep compiled programs for later processes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax


class CompiledStep:
    """`jax.jit` of a `step(state, batch, *more)` whose compilations are counted and timed apart from its runs."""

    def __init__(self, step: Callable[..., Any], *, donate_state: bool = False) -> None:
        self._jitted = jax.jit(step, donate_argnums=(0,) if donate_state else ())
        self._executables: dict[Any, Callable] = {}  # shapes and types of the batch -> executable
        self.seconds = 0.0  # spent compiling

    @property
    def count(self) -> int:
        """Number of compilations."""
        return len(self._executables)

    def __call__(self, state: Any, batch: Any, *more: Any) -> Any:
        """Run the step, compiled for the shapes of this batch; the other arguments keep theirs."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        if shapes not in self._executables:
            start = time.perf_counter()
            self._executables[shapes] = self._jitted.lower(state, batch, *more).compile()
            self.seconds += time.perf_counter() - start
        return self._executables[shapes](state, batch, *more)


def keep_compiled_programs(directory: Path) -> None:
    """Let JAX's persistent compilation cache, of the whole process, lie in this directory."""
    jax.config.update("jax_compilation_cache_dir", str(directory.absolute()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)  # the default leaves out most of small models
