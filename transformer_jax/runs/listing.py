"""Summaries of the runs below a directory, from their files; read-only, and without JAX."""

import contextlib
import dataclasses
import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from stat import S_ISREG
from typing import Literal, get_args

from transformer_jax.config import EMA, Criterion, TrainingConfig
from transformer_jax.errors import InputError, in_one_line
from transformer_jax.outside_files import Json, read_json
from transformer_jax.runs.own_files import no_link
from transformer_jax.runs.record import Record, Records, best_step
from transformer_jax.runs.settings import (
    CHECKPOINTS,
    CONFIG,
    LOCK,
    PARAMETERS,
    RESULTS,
    STATUS,
    WEIGHTS,
    completed,
    differing_settings,
    read_settings,
)

State = Literal["running", "interrupted", "finished", "diverged", "damaged"]
STATES: tuple[State, ...] = get_args(State)
TIMED = ("train", "eval", "compile")  # activities whose seconds are added up
OWN = frozenset({"name", "checkpoint_dir"})  # settings that the run's path shows


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, or an evaluation, as its files describe it."""

    task: str | None  # None if config.json can't be read
    name: str  # of its directory
    path: str
    state: State
    reason: str | None = None  # why it diverged or is damaged
    steps: int | None = None  # done and saved
    num_steps: int | None = None  # of the whole training; None if no checkpoint has it
    best_metric: str | None = None  # by which the best checkpoint is chosen, e.g. val/accuracy
    best_value: float | None = None
    # of training, evaluation and compilation, in all processes of the run
    seconds: float | None = None
    bytes: int = 0  # on disk
    time: float = 0.0  # of the last change, in seconds since 1970
    # of a finished run, e.g. test/accuracy
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    # all; in a list of runs, only those that differ
    settings: Json = dataclasses.field(default_factory=dict)
    mode: str = "max"  # whether higher (max) or lower (min) values are better

    def value(self, name: str) -> object:
        """The metric, setting or field of this name; None if there is none."""
        return {**vars(self), **self.settings, **self.metrics}.get(name)


def find_runs(directory: Path) -> list[Run]:
    """Find all runs in a directory and below it.

    Raises:
        InputError: the directory can't be read.
    """
    if not directory.is_dir():
        raise InputError(f"DIR is {directory}; it must be a directory")
    return [read_run(path) for path in _run_directories(directory)]


def with_varying_settings(runs: Sequence[Run]) -> list[Run]:
    """Return the runs, reduced to the settings in which runs of the same task differ."""
    varying = {}  # names of settings, by task
    for task in {run.task for run in runs}:
        varying[task] = varying_settings([run.settings for run in runs if run.task == task])
    reduced = []
    for run in runs:
        settings = {name: run.settings[name] for name in varying[run.task] if name in run.settings}
        reduced.append(dataclasses.replace(run, settings=settings))
    return reduced


def read_run(path: Path) -> Run:
    """Summarize a run from its files; a damaged run gets the state `damaged` and the reason."""
    fields: Json = {"task": None, "name": path.name, "path": str(path)}
    try:
        fields["bytes"], fields["time"] = _size_and_time(path)
        fields["task"], settings = read_settings(path)
        fields["settings"] = completed(TrainingConfig, settings)  # the tasks' own classes need JAX
        fields |= _progress(path)
    except Exception as error:  # the JSON may hold anything
        fields |= {"state": "damaged", "reason": in_one_line(error, with_class=True)}
    return Run(**fields)


def varying_settings(of_runs: Sequence[Json]) -> list[str]:
    """Names of the settings that differ between runs, without those that do not change results."""
    ignored = OWN | TrainingConfig.fields_with("keeps_result") - {"pretrained"}
    return sorted(differing_settings(*of_runs, ignored=ignored))


def is_held(path: Path) -> bool:
    """Whether a process holds a run's directory.

    Only the operating system knows: a process number may have been reused, or belong to another machine. This requests
    a shared lock and releases it at once; `RunDirectory` waits for longer than that.
    """
    try:
        with open(path / LOCK, "rb", opener=no_link) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file releases it
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it can't be read
        return False
    return False


def _run_directories(directory: Path) -> Iterator[Path]:
    """Yield the directories of runs, also of runs inside others; saved models and checkpoints are skipped."""
    for path, below, files in os.walk(directory):
        below.sort()
        if {WEIGHTS, PARAMETERS}.intersection(files):
            continue  # a saved model
        # A run that has not written its settings yet; other programs have lock files too.
        has_begun = LOCK in files and CHECKPOINTS in below
        if CONFIG in files or has_begun:
            yield Path(path)
            below[:] = [name for name in below if name != CHECKPOINTS]


def _progress(path: Path) -> Json:
    """Return the fields of `Run` that hold state and progress."""
    damage: list[str] = []
    records = Records(path / CHECKPOINTS, damage.append).all()
    fields: Json = {"state": "interrupted", "steps": 0}
    if records:
        fields |= _fields_of_checkpoints(records)
    if (path / RESULTS).exists():
        fields |= _fields_of_results(read_json(path / RESULTS))
    if (path / STATUS).exists():
        reason = read_json(path / STATUS).get("reason")
        fields |= {"state": "diverged", "reason": str(reason)}
    if is_held(path):
        fields |= {"state": "running", "reason": None}
    elif damage and not records:
        raise InputError(damage[-1])
    return fields


def _fields_of_checkpoints(records: Mapping[int, Record]) -> Json:
    """Return the fields of `Run` that the records of its checkpoints give."""
    newest = max(records)
    progress = records[newest].progress
    criterion = _criterion(progress)
    values = {step: record.value(criterion.metric) for step, record in records.items()}
    best = best_step(values, criterion)
    best_value = None if best is None else values[best]
    fields = _summary(criterion, best_value, progress["seconds"])
    return {"steps": newest, "num_steps": progress.get("num_steps"), **fields}


def _fields_of_results(results: Json) -> Json:
    """Return the fields of `Run` that the results of a finished run give."""
    criterion = _criterion(results)
    metrics = {}
    for split in ("val", "test"):
        for name, value in results.get(split, {}).items():
            metrics[f"{split}/{name}"] = value
    # the results are those of the moving average, if it was chosen
    best = float(metrics[f"val/{criterion.metric.removeprefix(EMA)}"])
    seconds = {name: results[f"{name}_seconds"] for name in TIMED}
    fields = _summary(criterion, best, seconds)
    return {"state": "finished", "steps": int(results["steps"]), "metrics": metrics, **fields}


def _summary(criterion: Criterion, best: float | None, seconds: Json) -> Json:
    """Return the fields of `Run` that checkpoints and results both give."""
    return {
        "best_metric": f"val/{criterion.metric}",
        "best_value": best,
        "seconds": sum(float(seconds[name]) for name in TIMED),
        "mode": criterion.mode,
    }


def _criterion(written: Json) -> Criterion:
    """Return the criterion of the best evaluation; the loss for older results and checkpoints, which do not have it."""
    return Criterion.parse(written.get("criterion") or "val/loss:min")


def _size_and_time(path: Path) -> tuple[int, float]:
    """Return the total size of all files below a path, in bytes, and the time of the latest change."""
    stats = [path.stat()]
    for below in path.rglob("*"):
        with contextlib.suppress(OSError):  # deleted meanwhile by the training process
            stats.append(below.stat())
    size = sum(stat.st_size for stat in stats if S_ISREG(stat.st_mode))
    return size, max(stat.st_mtime for stat in stats)
