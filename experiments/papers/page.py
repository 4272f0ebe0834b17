"""Generate the tables and pictures of docs/papers.md from the kept results."""

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
)  # heading and first table of a section
OVERVIEW = re.compile(r"(<!-- overview -->\n).*?(?=<!-- end of the overview -->)", re.DOTALL)


class Line(NamedTuple):
    """A row of a table."""

    label: str
    published: str  # the paper's number, or a dash
    runs: str  # prefix of the names of its runs, one for each seed
    paths: Sequence[str]  # for each column, path of its number in `results.json`, such as test/loss


class Picture(NamedTuple):
    """A figure of curves, each from the first run with a given prefix of the name."""

    # by label: prefix of the run's name, and path of its points
    curves: Mapping[str, tuple[str, str]]
    labels: tuple[str, str]  # of the axes
    log_y: bool = False


class Table(NamedTuple):
    """A table of a paper, in one setting."""

    command: str  # arguments of python, run in the repository's root
    lines: Sequence[Line]
    columns: Sequence[str] = ("here",)
    picture: Picture | None = None
    quick: str = "--quick"  # flags that make a run take seconds
    # third-party data that the command needs, in the repository; skipped if missing
    data: str | None = None


def kept(file: Path) -> dict[str, dict]:
    """Return the kept results by name of the run."""
    return json.loads(file.read_text()) if file.exists() else {}


def text(tables: Mapping[str, Table], results: Path = RESULTS) -> str:
    """Return the page, with its tables made from these results."""

    def renewed(place: re.Match[str]) -> str:
        return place[1] + made(tables[place[2]], kept(results / place[2] / "results.json"))

    page = MARKED.sub(renewed, PAGE.read_text(encoding="utf-8"))
    rows = []
    for heading, name in HEADED.findall(page):
        first, runs = tables[name].lines[0], kept(results / name / "results.json")
        _, published, here, *_, seeds, seconds = cells(first, runs)
        anchor = re.sub(r"[^\w]+", "-", heading.lower()).strip("-")
        minutes = f"{float(seconds) * int(seeds) / 60:.0f}" if runs else "–"
        rows.append(
            [f"[{heading}](#{anchor})", f"{first.label}: {published}", here, seeds, minutes]
        )
    titles = ["", "published", "here", "seeds", "minutes of all"]
    table = "\n".join(map(row, [titles, ["---"] * len(titles), *rows]))
    return OVERVIEW.sub(lambda place: f"{place[1]}\n{table}\n\n", page)


def made(table: Table, runs: dict[str, dict]) -> str:
    """Format a table in Markdown, with its command and the machine."""
    titles = ["", "published", *table.columns, "seeds", "seconds of a run"]
    rows = map(row, [titles, ["---"] * len(titles), *(cells(line, runs) for line in table.lines)])
    machines = {f"{run['machine']}, jax {run['versions']['jax']}" for run in runs.values()}
    command, made_on = (
        f"```\n.venv/bin/python {table.command}\n```",
        "; ".join(sorted(machines)) or "no machine yet",
    )
    return "\n".join(["", *rows, "", command, "", f"Made on: {made_on}.", "", ""])


def cells(line: Line, runs: Mapping[str, dict]) -> list[str]:
    """Cells of a row: label, published number, our numbers, number of seeds, and seconds per run."""
    found = [run for name, run in sorted(runs.items()) if name.startswith(line.runs)]
    columns = [
        [x for run in found if isinstance(x := at(run, path), int | float)] for path in line.paths
    ]
    seconds = [run["train_seconds"] + run["compile_seconds"] for run in found]
    time = f"{statistics.mean(seconds):.0f}" if seconds else "–"
    label = line.label
    # these runs began before the initial variance of queries, keys and values was halved
    if any(run.get("older_weights") for run in found):
        label = f"{label} †"
    return [label, line.published, *map(spread, columns), str(len(columns[0])), time]


def row(of_cells: Sequence[str]) -> str:
    """Format a row in Markdown."""
    return "|".join(["", *(f" {cell} " if cell else " " for cell in of_cells), ""])


def at(results: Any, path: str) -> Any:
    """Return the value at a path of `results.json`, or an empty dictionary if there is none."""
    for name, inner in results.items():  # names may contain slashes
        if path == name:
            return inner
        if path.startswith(f"{name}/"):
            return at(inner, path.removeprefix(f"{name}/"))
    return {}


def picture(wanted: Picture, runs: dict[str, dict]) -> Figure:
    """Plot the curves of a table."""
    curves = {}
    for curve, (begins, path) in wanted.curves.items():
        found = next((run for name, run in sorted(runs.items()) if name.startswith(begins)), {})
        curves[curve] = np.array(list(at(found, path).items()), float)
    curves = {name: points for name, points in curves.items() if len(points)}
    return plot_curves(curves, *wanted.labels, log_x=True, log_y=wanted.log_y)


def spread(values: Sequence[float]) -> str:
    """Format the mean and, for several values, the sample standard deviation."""
    found = [statistics.mean(values)] if values else []
    found += [statistics.stdev(values)] if len(values) > 1 else []
    formats = (
        ",.0f" if abs(x) >= 100 or x == int(x) else ".4f" if abs(x) >= 0.001 else ".1e"
        for x in found
    )
    return " ± ".join(f"{x:{form}}" for x, form in zip(found, formats, strict=True)) or "not run"
