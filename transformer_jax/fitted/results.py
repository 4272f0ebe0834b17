"""Results of a training run: print them, write them to `results.json`, and save the model on its own."""

import dataclasses
import importlib.metadata
import math
import platform
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.data.loader import Loader
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import LogPosition
from transformer_jax.runs.saved_model import card_of, save_model
from transformer_jax.runs.settings import as_json, description, settings_of
from transformer_jax.fit.journal import open_loggers
from transformer_jax.fit.progress import format_metric, quietly
from transformer_jax.training.task import Task

if TYPE_CHECKING:
    from transformer_jax.fit.trainer import TrainerModule

# settings that a task's own optimizer need not read
OF_OPTIMIZER = ("optimizer", "adam_b1", "adam_b2", "weight_decay")
Metrics = Mapping[str, Mapping[str, float]]  # mean of each metric, by split: val, test
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformer-jax")
REPOSITORY = Path(__file__).parents[2]  # if the package is used from a clone
GIT = (
    "git",
    "--no-optional-locks",
    "describe",
    "--always",
    "--dirty",
    "--abbrev=40",
    "--exclude=*",
)
MAX_SECONDS = 5.0  # time limit for git


def summary(metrics: Metrics, last: str) -> Iterator[str]:
    """Yield a line for each metric of each split; the metric `last`, by which the best model was chosen, comes last."""
    found = dict.fromkeys(name for of_split in metrics.values() for name in of_split)
    names = sorted(found, key=lambda name: (name == last, name == "accuracy"))
    width = max(len(f"{split} {name}:") for split in metrics for name in names)
    for name in names:
        # a metric is missing in a split where all its weights are 0
        for split, of_split in metrics.items():
            if name in of_split:
                yield (
                    f"{split.capitalize()} {name}:".ljust(width)
                    + f" {format_metric(name, of_split[name])}"
                )


def test(
    task: "TrainerModule",
    loaders: Mapping[str, Loader],
    run: RunDirectory | None,
    more: Mapping[str, object],
) -> Json:
    """Evaluate the best parameters on each split, and print every metric; see `TrainerModule.test`.

    Args:
        task: the trained task.
        loaders: loaders by split, `val` and `test`.
        run: the run's directory, for the results; None writes nothing.
        more: further entries of the results.
    """
    with task.stopwatch.during("eval"):
        metrics = {name: task.evaluate(loader) for name, loader in loaders.items()}
    results = results_of(task, metrics)
    results |= {"steps": task.steps, "total_seconds": time.monotonic() - task.made_at, **more}
    if run is not None:
        write_end(run, task, metrics, results)
    with quietly(task.config):
        print(*summary(metrics, task.config.criterion.metric), sep="\n")
    return results


def save(task: "TrainerModule", directory: Path) -> None:
    """Save a task's model on its own; see `TrainerModule.save`."""
    files = task.model_files()
    kept: dict[str, Any] = {
        name: file for name, file in task.config.kept_files().items() if file in files
    }
    # no paths
    config = dataclasses.replace(
        task.config.without_neutral(), init_from=None, init_only=None, **kept
    )
    settings = settings_of(task.name, config)
    card = card_of(
        settings, config.changed(), task.results, task.results.get("versions", versions())
    )
    # they hold paths
    results = as_json({name: value for name, value in task.results.items() if name != "settings"})
    save_model(directory, settings, task.params, card, results, files)


def results_of(task: "TrainerModule", metrics: Metrics) -> Json:
    """Collect metrics by split, accuracies also as `val_acc` and so on, seconds, settings, the model, and versions.

    Raises:
        FloatingPointError: a metric is not finite.
    """
    numbers = {
        f"{split}/{name}": value
        for split, of_split in metrics.items()
        for name, value in of_split.items()
    }
    if broken := [name for name, value in numbers.items() if not math.isfinite(value)]:
        raise FloatingPointError(
            f"{broken[0]} is {numbers[broken[0]]}; no results are written; checkpoints are kept"
        )
    accuracies = {
        f"{split}_acc": of_split["accuracy"]
        for split, of_split in metrics.items()
        if "accuracy" in of_split
    }
    seconds, settings = task.stopwatch.seconds, settings_of(task.name, task.config)
    if type(task).create_optimizer is not Task.create_optimizer:
        settings = {name: value for name, value in settings.items() if name not in OF_OPTIMIZER}
    return {
        **accuracies,
        **metrics,
        **{f"{activity}_seconds": seconds[activity] for activity in ("train", "compile", "eval")},
        "device": task.devices.kind,
        "num_devices": task.devices.mesh.size,
        "seed": task.config.seed,
        "criterion": str(task.config.criterion),
        "settings": settings,
        "model": description(task.model),  # which need not follow from the settings
        "versions": versions(),
        "git_commit": git_commit(),
    }


def write_end(run: RunDirectory, task: Task, metrics: Metrics, results: Json) -> None:
    """Log the metrics of the test set at the last step, and write `results.json`.

    Args:
        run: the run's directory.
        task: the trained task.
        metrics: metrics by split.
        results: content of `results.json`, with the number of `steps`.

    Raises:
        InputError: the directory can't be written, or is in use by another process.
    """
    steps = results["steps"]
    with run.held(), run.writing(), open_loggers(run, task, LogPosition(steps)) as loggers:
        for logger in loggers:
            logger.log(steps, {f"test/{name}": value for name, value in metrics["test"].items()})
            logger.log_results(
                {
                    f"{split}/{name}": value
                    for split, of in metrics.items()
                    for name, value in of.items()
                }
            )
        run.write_results(results)


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the libraries used; None for a library that is not installed."""
    found = {
        name: next(iter(importlib.metadata.distributions(name=name)), None) for name in LIBRARIES
    }
    versions = {
        name.replace("-", "_"): None if one is None else one.version for name, one in found.items()
    }
    return {"python": platform.python_version(), **versions}


def git_commit(repository: Path = REPOSITORY) -> str | None:
    """Return the commit of a git repository, with the suffix `-dirty` if a tracked file was changed.

    None if there is no repository (e.g. for an installed package), or if git is missing or fails.
    """
    if not (repository / ".git").exists():
        return None
    try:
        asked = subprocess.run(
            GIT, cwd=repository, capture_output=True, text=True, timeout=MAX_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return asked.stdout.strip()
