"""The results of a run: what is printed and what `results.json` holds, from the metrics of each split."""

import contextlib
import dataclasses
import importlib.metadata
import math
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import jax

from transformer_jax.devices.compiler_options import RUN_ONCE_OPTIONS, STEP_OPTIONS, unknown_options
from transformer_jax.devices.processes import is_first
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import Logger, LogPosition
from transformer_jax.runs.settings import settings_of
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.hooks import Task
from transformer_jax.training.progress import format_metric, parameter_table
from transformer_jax.trees import Params

OF_ADAM = ("adam_b1", "adam_b2", "weight_decay")  # settings that a task's own optimizer need not read
Metrics = Mapping[str, Mapping[str, float]]  # mean of each metric, by split: val, test
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformer-jax")
REPOSITORY = Path(__file__).parents[2]  # where the package is not installed
GIT = ("git", "--no-optional-locks", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
MAX_SECONDS = 5.0  # for git


def summary(metrics: Metrics, last: str) -> Iterator[str]:
    """A line for each metric of each split; those of `last`, by which the best model was chosen, come last."""
    found = dict.fromkeys(name for of_split in metrics.values() for name in of_split)
    names = sorted(found, key=lambda name: (name == last, name == "accuracy"))
    width = max(len(f"{split} {name}:") for split in metrics for name in names)
    for name in names:
        for split, of_split in metrics.items():  # a metric may have no weight in one of them
            if name in of_split:
                yield f"{split.capitalize()} {name}:".ljust(width) + f" {format_metric(name, of_split[name])}"


def announce(task: Evaluator, params: Params, num_steps: int, directory: Path) -> None:
    """Print what is about to be trained, where, and into which directory."""
    if task.config.verbose:
        print(parameter_table(params))
        if unknown := unknown_options(STEP_OPTIONS, RUN_ONCE_OPTIONS):
            print(f"Compiler options that are not known here, and left out: {', '.join(unknown)}")
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    print(f"{task.name}: {count:,} parameters, {num_steps:,} steps on {task.devices}, into {directory}")


def results_of(task: Evaluator, metrics: Metrics) -> Json:
    """Metrics by split, accuracies under names of their own (`val_acc`), seconds, settings, the model, versions.

    Raises:
        FloatingPointError: a metric is not finite.
    """
    numbers = {f"{split}/{name}": value for split, of_split in metrics.items() for name, value in of_split.items()}
    if broken := [name for name, value in numbers.items() if not math.isfinite(value)]:
        raise FloatingPointError(f"{broken[0]} is {numbers[broken[0]]}; no results are written, the checkpoints stay")
    accuracies = {f"{split}_acc": of_split["accuracy"] for split, of_split in metrics.items() if "accuracy" in of_split}
    seconds, settings = task.stopwatch.seconds, settings_of(task.name, task.config)
    if type(task).create_optimizer is not Task.create_optimizer:
        settings = {name: value for name, value in settings.items() if name not in OF_ADAM}
    return {
        **accuracies,
        **metrics,
        **{f"{activity}_seconds": seconds[activity] for activity in ("train", "compile", "eval")},
        "device": task.devices.kind,
        "num_devices": task.devices.mesh.size,
        "seed": task.config.seed,
        "criterion": str(task.config.criterion),
        "settings": settings,
        "model": description(task.model),  # whatever the settings say
        "versions": versions(),
        "git_commit": git_commit(),
    }


def description(part: object) -> object:
    """A model, or a part of it, as JSON: its class and its fields; of functions and classes their names."""
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        names = [field.name for field in dataclasses.fields(part) if field.name not in ("parent", "name")]
        return {"class": type(part).__name__, **{name: description(getattr(part, name)) for name in names}}
    return getattr(part, "__name__", type(part).__name__)


@contextlib.contextmanager
def open_loggers(run: RunDirectory, task: Task, position: LogPosition) -> Iterator[Sequence[Logger]]:
    """The loggers of a task's run, in the first process, with its settings logged; closed at the end of the block.

    Raises:
        InputError: the directory can't be written.
    """
    with contextlib.ExitStack() as opened:
        with run.writing():
            loggers = task.create_loggers(run.path, position) if is_first() else []
            for logger in loggers:
                opened.callback(logger.close)
            for logger in loggers:
                logger.log_settings(run.settings)
        yield loggers


def write_end(run: RunDirectory, task: Task, metrics: Metrics, results: Json) -> None:
    """Log the metrics of the test set at the last step, and write `results.json`.

    Args:
        run: its directory.
        task: that was trained.
        metrics: by split.
        results: with the number of `steps`.

    Raises:
        InputError: the directory can't be written, or another process holds it.
    """
    steps = results["steps"]
    with run.held(), run.writing(), open_loggers(run, task, LogPosition(steps)) as loggers:
        for logger in loggers:
            logger.log(steps, {f"test/{name}": value for name, value in metrics["test"].items()})
            logger.log_results(
                {f"{split}/{name}": value for split, of in metrics.items() for name, value in of.items()}
            )
        run.write_results(results)


def versions() -> dict[str, str | None]:
    """The versions of Python and of the libraries that compute; None for one that is not installed."""
    found = {name: next(iter(importlib.metadata.distributions(name=name)), None) for name in LIBRARIES}
    versions = {name.replace("-", "_"): None if one is None else one.version for name, one in found.items()}
    return {"python": platform.python_version(), **versions}


def git_commit(repository: Path = REPOSITORY) -> str | None:
    """The commit of a git repository, with `-dirty` if a file that it tracks was changed.

    Returns:
        None if there is no repository, as where the package is installed, or git is missing or fails.
    """
    if not (repository / ".git").exists():
        return None
    try:
        asked = subprocess.run(GIT, cwd=repository, capture_output=True, text=True, timeout=MAX_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()
