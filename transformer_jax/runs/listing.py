"""Summaries of the runs below a directory, from their files, without JAX and without writing anything."""

import dataclasses
import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from transformer_jax.config import Criterion, TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.runs.best_checkpoint import best_step
from transformer_jax.runs.record import RECORD, RECORD_FILE, Record
from transformer_jax.runs.settings import (
    CHECKPOINTS,
    CONFIG,
    LOCK,
    LOCK_HOLDER,
    PARAMETERS,
    RESULTS,
    STATUS,
    read_settings,
)

State = Literal["running", "interrupted", "finished", "diverged", "damaged"]
STATES: tuple[State, ...] = get_args(State)
TIMED = ("train", "eval", "compile")  # activities whose seconds are added up
MAX_BYTES = 2**26  # of a JSON file that is read
OWN = frozenset({"name", "checkpoint_dir"})  # settings that the run's path shows


@dataclasses.dataclass(frozen=True)
class Run:
    """A run, or an evaluation, as its files describe it."""

    task: str | None  # None where config.json can't be read
    name: str  # of its directory
    path: str
    state: State
    reason: str | None = None  # why it diverged or is damaged
    steps: int | None = None  # done and saved
    num_steps: int | None = None  # of the whole training; None where no checkpoint says it
    best_metric: str | None = None  # by which the best checkpoint is chosen, as val/accuracy
    best_value: float | None = None
    seconds: float | None = None  # of training, evaluation and compilation, in all processes of the run
    bytes: int = 0  # on disk
    time: float = 0.0  # of the last change, in seconds since 1970
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # all; in a list those that differ
    mode: str = "max"  # which of two best values is better: the max or the min


def find_runs(directory: Path) -> list[Run]:
    """All runs in a directory and below it, with the settings in which those of one task differ.

    Raises:
        InputError: the directory can't be read.
    """
    if not directory.is_dir():
        raise InputError(f"DIR is {directory}; it must be a directory")
    runs = [read_run(path) for path in _run_directories(directory)]
    of_tasks = {task: [run.settings for run in runs if run.task == task] for task in {run.task for run in runs}}
    differing = {task: differing_settings(settings) for task, settings in of_tasks.items()}
    return [
        dataclasses.replace(run, settings={n: run.settings[n] for n in differing[run.task] if n in run.settings})
        for run in runs
    ]


def read_run(path: Path) -> Run:
    """Summary of a run from its files; for a damaged one the state `damaged`, and the reason."""
    run = Run(None, path.name, str(path), "damaged")
    try:
        size, time = _size_and_time(path)
        run = dataclasses.replace(run, bytes=size, time=time)
        task, settings = read_settings(path)
        run = dataclasses.replace(run, task=task, settings=settings)
        return _with_progress(run, path)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:  # the files may hold any JSON
        reason = f"its files hold unexpected values ({type(error).__name__}: {error})"
    return dataclasses.replace(run, reason=reason)


def differing_settings(of_runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the settings that are not the same in all runs that have them, but for those that change no result."""
    ignored = OWN | TrainingConfig.neutral_fields() - {"pretrained"}
    names = sorted({name for settings in of_runs for name in settings} - ignored)
    values = {name: [settings[name] for settings in of_runs if name in settings] for name in names}
    return [name for name in names if any(value != values[name][0] for value in values[name])]


def is_held(path: Path) -> bool:
    """Whether a process holds a run's directory.

    The operating system knows it alone: a process's number may have been given anew, or be another machine's. A shared
    lock is asked for and given back at once; `RunDirectory` waits for longer than that.
    """
    try:
        with (path / LOCK).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)  # closing the file gives it back
    except BlockingIOError:
        return True
    except OSError:  # there is none, or it can't be read
        return False
    return False


def _run_directories(directory: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for path, below, files in os.walk(directory, followlinks=True):
        below.sort()
        if (real := os.path.realpath(path)) in seen:
            below.clear()
            continue
        seen.add(real)
        if CONFIG in files or LOCK_HOLDER in files:
            yield Path(path)
            below[:] = [name for name in below if name != CHECKPOINTS]


def _with_progress(run: Run, path: Path) -> Run:
    """The same run with its state and its progress."""
    results = _read_json(path / RESULTS)
    status = _read_json(path / STATUS)
    records, damage = _records(path / CHECKPOINTS)
    run = dataclasses.replace(run, state="interrupted", steps=0)
    if records:
        run = _with_records(run, records)
    if results is not None:
        run = _with_results(run, results)
    elif (path / PARAMETERS).exists():  # it ships
        run = dataclasses.replace(run, state="finished", steps=None)
    if status is not None:
        run = dataclasses.replace(run, state="diverged", reason=str(status.get("reason")))
    if is_held(path):
        return dataclasses.replace(run, state="running")
    if damage and not records:
        raise ValueError(damage)
    return run


def _with_records(run: Run, records: Mapping[int, Record]) -> Run:
    newest = records[max(records)].progress
    of_steps = {step: record.metrics for step, record in records.items() if record.metrics is not None}
    criterion = _criterion(run, newest, next(iter(of_steps.values()), {}))
    values = {step: float(metrics.get(criterion.metric, math.nan)) for step, metrics in of_steps.items()}
    best = best_step(values, criterion)
    return dataclasses.replace(
        run,
        steps=max(records),
        num_steps=_number(newest["num_steps"]) if "num_steps" in newest else None,
        best_metric=f"val/{criterion.metric}",
        best_value=None if best is None else values[best],
        seconds=sum(_number(newest["seconds"][name]) for name in TIMED),
        mode=criterion.mode,
    )


def _with_results(run: Run, results: Mapping[str, Any]) -> Run:
    criterion = _criterion(run, results, results["val"])
    value = float(results["val"].get(criterion.metric, math.nan))
    return dataclasses.replace(
        run,
        state="finished",
        steps=_number(results["steps"]),
        best_metric=f"val/{criterion.metric}",
        best_value=value if math.isfinite(value) else run.best_value,
        seconds=sum(_number(results[f"{name}_seconds"]) for name in TIMED),
        mode=criterion.mode,
    )


def _records(directory: Path) -> tuple[dict[int, Record], str]:
    """The intact records of a run's checkpoints by step, and why the last damaged one can't be read."""
    records, damage = {}, ""
    for path in directory.iterdir() if directory.is_dir() else ():
        if not path.name.isdecimal():
            continue
        try:
            content = _read_json(path / RECORD / RECORD_FILE)
            if content is None:
                raise ValueError("it has no record")
            records[int(path.name)] = Record.from_json(int(path.name), content, f"the checkpoint {path}")
        except (InputError, OSError, ValueError, LookupError) as error:
            if path.exists():  # else the process that trains has deleted it meanwhile
                damage = f"the checkpoint of step {path.name} can't be read: {error}"
    return records, damage


def _criterion(run: Run, written: Mapping[str, Any], metrics: Mapping[str, Any]) -> Criterion:
    """By which evaluation is the best; results and checkpoints from before they held it leave the usual ones."""
    usual = "val/accuracy:max" if "accuracy" in metrics else "val/loss:min"
    return Criterion.parse(written.get("criterion") or run.settings.get("best_by") or usual)


def _number(value: Any) -> Any:
    """A finite number, as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"its files hold {value!r} where a number is expected")
    return value


def _read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file, None if there is no file."""
    try:
        with file.open("rb") as stream:
            content = json.loads(stream.read(MAX_BYTES).decode("utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} can't be read: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file} can't be read: it holds no JSON object")
    return content


def _size_and_time(path: Path) -> tuple[int, float]:
    """The sizes of all files below a path, in bytes, and the time of the last change of one."""
    stats = [path.stat()]
    for directory, _, files in os.walk(path):
        for name in files:
            try:
                stats.append(os.stat(os.path.join(directory, name)))
            except OSError:  # the process that trains has deleted it meanwhile
                continue
    return sum(stat.st_size for stat in stats[1:]), max(stat.st_mtime for stat in stats)
