"""The experiments' commands, run in this process."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from unittest import mock

import jax
from commands import run_here
from jax.experimental.compilation_cache import compilation_cache

from transformer_jax.training.loop import TrainingLoop


def command(name: str, *arguments: object, two_steps: bool = False) -> Callable[[], None]:
    """A function that runs a script of `experiments/` with these arguments, of a training the first two steps alone."""

    def train(loop: TrainingLoop) -> None:
        loop.train_until(min(2, loop.num_steps))
        sys.exit(0)

    def run() -> None:
        shortened = mock.patch.object(TrainingLoop, "train", train) if two_steps else contextlib.nullcontext()
        with shortened, _settings_of_jax():
            run_here(name, *arguments)

    return run


@contextlib.contextmanager
def _settings_of_jax() -> Iterator[None]:
    """Restore the directory of compiled programs, which a command sets for its whole process."""
    names = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
    before = {name: getattr(jax.config, name) for name in names}
    try:
        yield
    finally:
        if before != {name: getattr(jax.config, name) for name in names}:
            for name, value in before.items():
                jax.config.update(name, value)
            compilation_cache.reset_cache()
