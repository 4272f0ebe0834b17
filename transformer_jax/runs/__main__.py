"""List the runs below a directory: `python -m transformer_jax.runs --help`."""

import argparse
import csv
import dataclasses
import io
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from transformer_jax.config import format_metric
from transformer_jax.errors import InputError, visible
from transformer_jax.flags import Parser, end_with, escape_output
from transformer_jax.runs.listing import (
    STATES,
    Run,
    find_runs,
    read_run,
    varying_settings,
    with_varying_settings,
)

PROGRAM = "python -m transformer_jax.runs"
DEFAULT = Path("checkpoints")  # the default of `TrainingConfig.checkpoint_dir`
SORTS = ("name", "best", "seconds", "steps", "time")
HEADINGS = ["task", "name", "state", "steps", "best", "seconds", "size", "differing settings"]
MAX_SHOWN = 200  # characters of a name or a value in a table; --json shows all


def main(arguments: list[str]) -> None:
    """Print the runs below a directory, as a table or as JSON, or the differences of two runs.

    Raises:
        InputError: a flag or column is unknown, flags exclude each other, or a directory or run does not exist.
    """
    chosen = _chosen(arguments)
    if chosen.diff:
        rows = differences(*map(read_run, chosen.paths))
        print(_lines(rows, as_csv=chosen.csv))
        return
    all_runs = []
    for path in dict.fromkeys(chosen.paths):
        if path != DEFAULT or DEFAULT.exists():
            all_runs += find_runs(path)
    all_runs.sort(key=lambda run: sort_key(run, chosen.sort))
    runs = all_runs
    for name in ("task", "state"):
        value = getattr(chosen, name)
        runs = [run for run in runs if value in (None, getattr(run, name))]
    if chosen.json:
        text = json.dumps([dataclasses.asdict(run) for run in with_varying_settings(runs)])
        # null for NaN and infinity
        entries = json.loads(text, parse_constant=lambda name: None)
        print(json.dumps(entries, indent=2))
    elif not runs:
        others = f"; {len(all_runs)} are of another task or state" if all_runs else ""
        print(f"No runs in {', '.join(map(str, chosen.paths))}{others}")
    else:
        # shown paths are relative to it
        directory = chosen.paths[0] if len(chosen.paths) == 1 else Path()
        if chosen.columns is None:
            rows = [HEADINGS, *(_row(run, directory) for run in with_varying_settings(runs))]
        else:
            rows = _chosen_columns(runs, directory, chosen.columns.split(","))
        print(_lines(rows, as_csv=chosen.csv))


def _chosen(arguments: list[str]) -> argparse.Namespace:
    """Parse the flags; raise an `InputError` for flags that are wrong or exclude each other."""
    parser = Parser(
        prog=PROGRAM, description="List the runs below a directory, or compare two runs."
    )
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[DEFAULT],
        metavar="DIR",
        help=f"directories to search for runs, at any depth (default: {DEFAULT}); with --diff, two"
        " runs",
    )
    parser.add_argument(
        "--sort", choices=SORTS, default="name", help="sort order of the runs (default: name)"
    )
    parser.add_argument("--task", help="list only the runs of this task, e.g. ReverseTask")
    parser.add_argument("--state", choices=STATES, help="list only the runs in this state")
    parser.add_argument(
        "--csv", action="store_true", help="print comma-separated values instead of a table"
    )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument(
        "--diff",
        action="store_true",
        help="show the settings and metrics in which two runs differ",
    )
    forms.add_argument(
        "--columns",
        metavar="NAME,...",
        help="columns to show: metrics (test/accuracy), settings (lr) and fields of --json (state)",
    )
    forms.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    chosen = parser.parse_args(arguments)
    if chosen.diff and len(chosen.paths) != 2:
        raise InputError(f"DIR is {' '.join(map(str, chosen.paths))}; --diff takes two runs")
    for form, flag in (("diff", "task"), ("diff", "state"), ("json", "csv")):
        if getattr(chosen, form) and getattr(chosen, flag):
            raise InputError(f"--{flag} cannot be combined with --{form}")
    return chosen


def sort_key(run: Run, sort: str) -> tuple[object, ...]:
    """Return the sort key: paths ascending; best values first, by task and metric; most seconds or steps, or newest."""
    if sort == "name":
        return (run.path,)
    if sort != "best":
        number = getattr(run, sort) or 0
        return (-number, run.path)
    value = math.inf  # last
    if run.best_value is not None and math.isfinite(run.best_value):
        value = run.best_value if run.mode == "min" else -run.best_value
    return (run.task or "", run.best_metric or "", value, run.path)


def _chosen_columns(runs: Sequence[Run], directory: Path, names: Sequence[str]) -> list[list[str]]:
    """The rows of a table with columns of these names; an `InputError` for a name that no run has."""
    for name in names:
        if all(run.value(name) is None for run in runs):
            metrics = sorted({metric for run in runs for metric in run.metrics})
            raise InputError(
                f"--columns names {name}, which no run has; the metrics are {', '.join(metrics)}"
            )
    rows = [["name", *map(_shown, names)]]
    for run in runs:
        rows.append([_path(run, directory), *(_shown(run.value(name)) for name in names)])
    return rows


def differences(one: Run, other: Run) -> list[list[str]]:
    """Return the rows of a table: the names of the two runs, then the settings and metrics that differ.

    Raises:
        InputError: one of them is damaged or not a run.
    """
    for run in (one, other):
        if run.state == "damaged":
            raise InputError(f"{run.path} cannot be compared: {run.reason}")
    rows = [["", _shown(one.path), _shown(other.path)]]
    settings = varying_settings([one.settings, other.settings])
    for name in ("task", *settings, *sorted(one.metrics | other.metrics)):
        first = _text(one.value(name))
        second = _text(other.value(name))
        if first != second:
            rows.append([_shown(name), _shown(first), _shown(second)])
    return rows


def _lines(rows: Sequence[Sequence[str]], *, as_csv: bool) -> str:
    """Format a table as aligned columns, or as comma-separated values."""
    if as_csv:
        file = io.StringIO()
        csv.writer(file, lineterminator="\n").writerows(rows)
        return file.getvalue().removesuffix("\n")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _shown(value: object) -> str:
    return visible(_text(value), length=MAX_SHOWN)


def _path(run: Run, directory: Path) -> str:
    path = os.path.relpath(run.path, directory)
    return _shown(run.name if path == "." else path)


def _row(run: Run, directory: Path) -> list[str]:
    """A run's cells below the `HEADINGS`."""
    steps = _text(run.steps)
    if run.num_steps is not None:
        steps = _shown(f"{steps}/{run.num_steps}")
    metric = _shown(run.best_metric)
    best = ""
    if run.best_value is not None:
        best = f"{metric} {format_metric(metric, run.best_value)}"
    seconds = "" if run.seconds is None else f"{run.seconds:.0f}"
    size = f"{run.bytes / 1e6:.1f} MB"
    notes = [_shown(f"{name}={value}") for name, value in run.settings.items()]
    if run.reason is not None:
        notes.append(f"({_shown(run.reason)})")
    return [
        _shown(run.task or "?"),
        _path(run, directory),
        run.state,
        steps,
        best,
        seconds,
        size,
        " ".join(notes),
    ]


if __name__ == "__main__":
    escape_output()
    try:
        main(sys.argv[1:])
        print(end="", flush=True)
    except BrokenPipeError:  # the reader has closed the pipe, such as `| head`
        end_with("", 141)
    except (InputError, OSError) as error:
        end_with(f"{PROGRAM}: error: {visible(str(error), length=5 * MAX_SHOWN)}\n", 2)
