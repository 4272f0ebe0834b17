"""The callbacks that every training has: curves, throughput, memory, early stopping."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.training.callbacks import Callback, EarlyStopping, Log, LogMetrics
from transformer_jax.training.runner import StepRunner
from transformer_jax.training.throughput import LogThroughput, ShowProgram

T = TypeVar("T")


def standard_callbacks(
    config: TrainingConfig, runner: StepRunner, log: Log, write: Callable[[str], None], steps_per_epoch: int
) -> list[Callback]:
    """The callbacks of a training with these settings.

    Args:
        config: of the training.
        runner: of its steps.
        log: gets the entries of the curves.
        write: prints a line.
        steps_per_epoch: of the training set.
    """
    has_loop = config.accumulate > 1 or config.scan_layers  # in the step, whose rounds are not counted
    flops = (lambda: None) if has_loop else (lambda: runner.flops_per_step)
    devices = list(runner.devices.mesh.devices.flat)
    program = ShowProgram(write, runner.attention, lambda: runner.compiled.memory)
    return [
        LogMetrics(log, config.log_every, steps_per_epoch, log_norms=config.log_norms),
        *([program] if config.verbose else []),
        LogThroughput(log, config.log_every, config.batch_size, flops, devices),
        EarlyStopping(config.criterion, config.patience),
    ]


def by_class(what: str, things: Sequence[T]) -> dict[str, T]:
    """The things by the names of their classes, under which a checkpoint keeps their states.

    Raises:
        InputError: two are of one class.
    """
    names = [type(thing).__name__ for thing in things]
    if doubles := [name for name in names if names.count(name) > 1]:
        raise InputError(f"there are two {what} of class {doubles[0]}; a checkpoint keeps their states by it")
    return dict(zip(names, things, strict=True))
