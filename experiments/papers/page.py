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
HEADED = re.compile(
    r"^#+ ([^\n]*)\n(?:(?!^#).)*?<!-- table (\w+) -->", re.DOTALL | re.MULTILINE
)  # a section's first one
OVERVIEW = re.compile(r"(<!-- overview -->\n).*?(?=<!-- end of the overview -->)", re.DOTALL)


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
    data: str | None = None  # what others made and the command needs, below the repository; it is left out without


def kept(file: Path) -> dict[str, dict]:
    """The results of runs by name."""
    return json.loads(file.read_text()) if file.exists() else {}


def text(tables: Mapping[str, Table], results: Path = RESULTS) -> str:
    """The page with the tables that these results make."""

    def renewed(place: re.Match[str]) -> str:
        return place[1] + made(tables[place[2]], kept(results / place[2] / "results.json"))

    page = MARKED.sub(renewed, PAGE.read_text(encoding="utf-8"))
    rows = []
    for heading, name in HEADED.findall(page):
        first, runs = tables[name].lines[0], kept(results / name / "results.json")
        _, published, here, *_, seeds, seconds = cells(first, runs)
        anchor = re.sub(r"[^\w]+", "-", heading.lower()).strip("-")
        minutes = f"{float(seconds) * int(seeds) / 60:.0f}" if runs else "–"
        rows.append([f"[{heading}](#{anchor})", f"{first.label}: {published}", here, seeds, minutes])
    titles = ["", "published", "here", "seeds", "minutes of all"]
    table = "\n".join(map(row, [titles, ["---"] * len(titles), *rows]))
    return OVERVIEW.sub(lambda place: f"{place[1]}\n{table}\n\n", page)


def made(table: Table, runs: dict[str, dict]) -> str:
    """A table, its command, and the machine."""
    titles = ["", "published", *table.columns, "seeds", "seconds of a run"]
    rows = map(row, [titles, ["---"] * len(titles), *(cells(line, runs) for line in table.lines)])
    machines = {f"{run['machine']}, jax {run['versions']['jax']}" for run in runs.values()}
    command, made_on = f"```\n.venv/bin/python {table.command}\n```", "; ".join(sorted(machines)) or "no machine yet"
    return "\n".join(["", *rows, "", command, "", f"Made on: {made_on}.", "", ""])


def cells(line: Line, runs: Mapping[str, dict]) -> list[str]:
    """A line of a table: what it is, the published number, those made here, how many seeds, and seconds of one."""
    found = [run for name, run in sorted(runs.items()) if name.startswith(line.runs)]
    columns = [[x for run in found if isinstance(x := at(run, path), int | float)] for path in line.paths]
    seconds = [run["train_seconds"] + run["compile_seconds"] for run in found]
    time = f"{statistics.mean(seconds):.0f}" if seconds else "–"
    return [line.label, line.published, *map(spread, columns), str(len(columns[0])), time]


def row(of_cells: Sequence[str]) -> str:
    """A row in Markdown."""
    return "|".join(["", *(f" {cell} " if cell else " " for cell in of_cells), ""])


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
