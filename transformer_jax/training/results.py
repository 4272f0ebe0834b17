"""The results of a run: what is printed and what `results.json` holds, from the metrics of each split."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from transformer_jax.devices.processes import is_first
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.loggers import Logger, LogPosition
from transformer_jax.training.progress import format_metric

Metrics = Mapping[str, Mapping[str, float]]  # mean of each metric, by split: val, test


def process_age() -> float:
    """Seconds since this process began."""
    return time.time() - float(psutil.Process().create_time())


def summary(metrics: Metrics, last: str) -> Iterator[str]:
    """A line for each metric of each split; those of `last`, by which the best model was chosen, come last."""
    names = sorted(next(iter(metrics.values())), key=lambda name: (name == last, name == "accuracy"))
    width = max(len(f"{split} {name}:") for split in metrics for name in names)
    for name in names:
        for split, of_split in metrics.items():
            yield f"{split.capitalize()} {name}:".ljust(width) + f" {format_metric(name, of_split[name])}"


def results_of(metrics: Metrics, seconds: Mapping[str, float]) -> dict[str, Any]:  # Any: JSON
    """Metrics by split, accuracies under names of their own (`val_acc`), and the seconds of each activity."""
    accuracies = {f"{split}_acc": of_split["accuracy"] for split, of_split in metrics.items() if "accuracy" in of_split}
    timed = {f"{activity}_seconds": seconds[activity] for activity in ("train", "compile", "eval")}
    return {**accuracies, **metrics, **timed}


def write_end(
    run: RunDirectory,
    create_loggers: Callable[[Path, LogPosition], Sequence[Logger]],
    metrics: Metrics,
    results: Mapping[str, Any],
) -> None:
    """Log the metrics of the test set at the last step, and write `results.json`.

    Args:
        run: its directory.
        create_loggers: of the task.
        metrics: by split.
        results: with the number of `steps`.

    Raises:
        InputError: the directory can't be written, or another process holds it.
    """
    steps = results["steps"]
    with run.held(), run.writing(), contextlib.ExitStack() as closed:
        loggers = create_loggers(run.path, LogPosition(steps)) if is_first() else []
        for logger in loggers:
            closed.callback(logger.close)
        for logger in loggers:
            logger.log_settings(run.settings)
            logger.log(steps, {f"test/{name}": value for name, value in metrics["test"].items()})
            logger.log_results(
                {f"{split}/{name}": value for split, of in metrics.items() for name, value in of.items()}
            )
        run.write_results(results)
