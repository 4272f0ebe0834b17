"""Results of a training run: print them, write them to `results.json`, and save the model on its own."""

import dataclasses
import importlib.metadata
import math
import platform
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict

from transformer_jax.config import format_metric
from transformer_jax.devices.processes import quietly, say
from transformer_jax.fitted.fitted import Fitted
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import LogPosition, open_loggers
from transformer_jax.runs.saved_model import card_of, save_model
from transformer_jax.runs.settings import as_json, description, settings_of
from transformer_jax.training.task import Task

# settings that a task's own optimizer need not read
OF_OPTIMIZER = ("optimizer", "adam_b1", "adam_b2", "weight_decay")
Metrics = Mapping[str, Mapping[str, float]]  # mean of each metric, by split: val, test
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformer-jax")
REPOSITORY = Path(__file__).parents[2]  # if the package is used from a clone
GIT = [
    "git",
    "--no-optional-locks",
    "describe",
    "--always",
    "--dirty",
    "--abbrev=40",
    "--exclude=*",
]
MAX_SECONDS = 5.0  # time limit for git


def summary(metrics: Metrics, last: str, counted: str) -> Iterator[str]:
    """Yield a line for each metric of each split.

    Args:
        metrics: by split.
        last: the metric by which the best model was chosen, which comes last.
        counted: elements that accuracies count, in the plural.
    """
    unique_names = dict.fromkeys(name for means in metrics.values() for name in means)
    # the accuracy comes after other metrics, and `last` after it
    names = sorted(unique_names, key=lambda name: (name == last, name == "accuracy"))
    width = max(len(f"{split} {name}:") for split in metrics for name in names)
    for name in names:
        counted_elements = f" of {counted}" if name.endswith("accuracy") else ""
        for split, means in metrics.items():
            # a metric is missing in a split where all its weights are 0
            if name in means:
                title = f"{split.capitalize()} {name}:"
                yield f"{title:{width}} {format_metric(name, means[name])}{counted_elements}"


def finish(
    fitted: Fitted, metrics: Metrics, run: RunDirectory | None, more: Mapping[str, object]
) -> Json:
    """Print every metric of the best parameters; log them, and write `results.json`.

    Args:
        fitted: the trained model.
        metrics: by split, `val` and `test`.
        run: the run's directory; None writes nothing.
        more: further entries of the results.

    Returns:
        The content of `results.json`.

    Raises:
        FloatingPointError: a metric is not finite.
        InputError: the directory can't be written, or is in use by another process.
    """
    steps = fitted.steps
    task = fitted.task
    results = {**results_of(fitted, metrics), "steps": steps, **more}
    if run is not None:
        by_name = flatten_dict(metrics, sep="/")  # such as `test/accuracy`
        test_metrics = {f"test/{name}": value for name, value in metrics["test"].items()}
        position = LogPosition(steps)
        with run.held(), run.writing():
            with open_loggers(task.create_loggers, run.path, position, run.settings) as loggers:
                for logger in loggers:
                    logger.log(steps, test_metrics)
                    logger.log_results(by_name)
            run.write_results(results)
    with quietly(task.config):
        say(*summary(metrics, task.config.criterion.metric, task.counted))
    return results


def save(fitted: Fitted, results: Json, directory: Path) -> None:
    """Save a model on its own; see `TrainerModule.save`."""
    task = fitted.task
    files = task.model_files()
    # A model that may be given away has no paths: names of the saved files stand for their origins.
    without_paths: dict[str, Any] = {"init_from": None, "init_only": None}
    for name, file in task.config.kept_files().items():
        if file in files:
            without_paths[name] = file
    config = dataclasses.replace(task.config.without_neutral(), **without_paths)
    settings = settings_of(task.name, config)
    card = card_of(settings, config.changed(), results, results.get("versions", versions()))
    # the settings hold paths
    saved = as_json({name: value for name, value in results.items() if name != "settings"})
    saved["trained_length"] = task.trained_length  # also of a model that was not tested
    save_model(directory, settings, fitted.params, card, saved, files)


def results_of(fitted: Fitted, metrics: Metrics) -> Json:
    """Collect metrics by split, accuracies also as `val_acc` and so on, seconds, settings, the model, and versions.

    Raises:
        FloatingPointError: a metric is not finite.
    """
    for name, value in flatten_dict(metrics, sep="/").items():
        if not math.isfinite(value):
            raise FloatingPointError(
                f"{name} is {value}; no results are written; checkpoints are kept"
            )
    results: Json = {}
    for split, means in metrics.items():
        if "accuracy" in means:
            results[f"{split}_acc"] = means["accuracy"]
    results |= metrics
    seconds = fitted.compiled.stopwatch.seconds
    for activity in ("train", "compile", "eval"):
        results[f"{activity}_seconds"] = seconds[activity]
    task = fitted.task
    settings = settings_of(task.name, task.config)
    if type(task).create_optimizer is not Task.create_optimizer:
        settings = {name: value for name, value in settings.items() if name not in OF_OPTIMIZER}
    return results | {
        "device": fitted.compiled.devices.kind,
        "num_devices": fitted.compiled.devices.mesh.size,
        "seed": task.config.seed,
        "trained_length": task.trained_length,
        "criterion": str(task.config.criterion),
        "settings": settings,
        "model": description(task.model),  # which need not follow from the settings
        "versions": versions(),
        "git_commit": git_commit(),
    }


def versions() -> dict[str, str | None]:
    """Return the versions of Python and of the libraries used; None for a library that is not installed."""
    by_name: dict[str, str | None] = {"python": platform.python_version()}
    for name in LIBRARIES:
        distributions = importlib.metadata.distributions(name=name)
        first = next(iter(distributions), None)  # the one that is imported
        by_name[name.replace("-", "_")] = None if first is None else first.version
    return by_name


def git_commit(repository: Path = REPOSITORY) -> str | None:
    """Return the commit of a git repository, with the suffix `-dirty` if a tracked file was changed.

    None if there is no repository (e.g. for an installed package), or if git is missing or fails.
    """
    if not (repository / ".git").exists():
        return None
    try:
        answer = subprocess.run(
            GIT, cwd=repository, capture_output=True, text=True, timeout=MAX_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
