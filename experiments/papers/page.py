"""The page of papers, made from the results that are kept."""

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from transformer_jax.plots import plot_curves

PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
RESULTS = Path(__file__).parent / "results"
MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(?=<!-- end of the table -->)", re.DOTALL)


class Line(NamedTuple):
    """A line of a table."""

    label: str
    published: str  # the paper's number, or a dash
    runs: str  # begins the names of the runs, which differ in the seed
    paths: Sequence[str]  # of a number for each column in `results.json`, as test/loss


class Picture(NamedTuple):
    """Curves, each of the first run whose name begins so."""

    curves: Mapping[str, tuple[str, str]]  # by the name of each: how the run's begins, and the path of its numbers
    labels: tuple[str, str]  # of the axes
    log_y: bool = False


class Table(NamedTuple):
    """A paper's table, in one setting."""

    command: str  # arguments of python, from the repository's root
    lines: Sequence[Line]
    columns: Sequence[str] = ("here",)
    picture: Picture | None = None
    quick: str = "--quick"  # flags with which a run takes seconds


def kept(file: Path) -> dict[str, dict]:
    """The results of runs by name."""
    return json.loads(file.read_text()) if file.exists() else {}


def text(tables: Mapping[str, Table], results: Path = RESULTS) -> str:
    """The page with the tables that these results make."""

    def renewed(place: re.Match[str]) -> str:
        return place[1] + made(tables[place[2]], kept(results / place[2] / "results.json"))

    return MARKED.sub(renewed, PAGE.read_text(encoding="utf-8"))


def made(table: Table, runs: dict[str, dict]) -> str:
    """A table, its command, and the machine."""
    titles = ["", "published", *table.columns, "seeds", "seconds of a run"]
    lines = [titles, ["---"] * len(titles)]
    for line in table.lines:
        found = [run for name, run in sorted(runs.items()) if name.startswith(line.runs)]
        columns = [[x for run in found if isinstance(x := at(run, path), int | float)] for path in line.paths]
        seconds = [run["train_seconds"] + run["compile_seconds"] for run in found]
        time = f"{statistics.mean(seconds):.0f}" if seconds else "–"
        lines.append([line.label, line.published, *map(spread, columns), str(len(columns[0])), time])
    rows = ["|".join(["", *(f" {cell} " if cell else " " for cell in line), ""]) for line in lines]
    machines = {f"{run['machine']}, jax {run['versions']['jax']}" for run in runs.values()}
    command, made_on = f"```\n.venv/bin/python {table.command}\n```", "; ".join(sorted(machines)) or "no machine yet"
    return "\n".join(["", *rows, "", command, "", f"Made on: {made_on}.", "", ""])


def at(results: Any, path: str) -> Any:
    """What stands at a path of `results.json`; an empty dictionary where nothing does."""
    for name, inner in results.items():  # a name may hold slashes, too
        if path == name:
            return inner
        if path.startswith(f"{name}/"):
            return at(inner, path.removeprefix(f"{name}/"))
    return {}


def picture(wanted: Picture, runs: dict[str, dict]) -> Figure:
    """The curves of a table."""
    curves = {}
    for curve, (begins, path) in wanted.curves.items():
        found = next((run for name, run in sorted(runs.items()) if name.startswith(begins)), {})
        curves[curve] = np.array(list(at(found, path).items()), float)
    curves = {name: points for name, points in curves.items() if len(points)}
    return plot_curves(curves, *wanted.labels, log_x=True, log_y=wanted.log_y)


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    found = [statistics.mean(values)] if values else []
    found += [statistics.stdev(values)] if len(values) > 1 else []
    formats = (",.0f" if abs(x) >= 100 or x == int(x) else ".4f" if abs(x) >= 0.001 else ".1e" for x in found)
    return " ± ".join(f"{x:{form}}" for x, form in zip(found, formats, strict=True)) or "not run"
