"""Published tables made again: train what is missing, and renew the tables of `docs/papers.md` (`make papers`).

A run that was interrupted goes on, one that is finished is only tested again. The runs are below `--checkpoint-dir`,
what they found below `experiments/papers/results/`. `--quick` trains for a few steps and writes nothing elsewhere.
"""

import dataclasses
import datetime
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tables import TABLES, Chosen, Table

from transformer_jax import run
from transformer_jax.cli import parse

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "papers.md"
RESULTS = FOLDER / "results"
ABOUT_THE_RUN = ("settings", "model", "git_commit", "num_devices")  # which the command tells
MARKED = re.compile(r"(<!-- table (\w+) -->\n).*?(?=<!-- end of the table -->)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Papers:
    """Train what the tables need, and renew them."""

    checkpoint_dir: Path = Path("checkpoints")  # parent of the runs
    quick: bool = False  # a few steps with one seed each; the page and its results go below checkpoint_dir
    train: Chosen = "all"  # whose runs are trained; the page is renewed in any case, from the results that are kept


def make(papers: Papers) -> None:
    """Run every table's command, keep its results, and renew the page."""
    below = papers.checkpoint_dir.resolve()
    results, page = (below / "results", below / PAGE.name) if papers.quick else (RESULTS, PAGE)
    for name, table in ((name, TABLES[name]) for name in TABLES if papers.train in ("all", name)):
        print(f"# {name}", flush=True)
        more = ["--checkpoint-dir", str(below), *(["--seeds", "0", "--quick"] if papers.quick else [])]
        subprocess.run([sys.executable, *shlex.split(table.command), *more], cwd=FOLDER.parents[1], check=True)
        keep(below / name, results / name / "results.json")
    page.write_text(text(results), encoding="utf-8")
    print(f"Written: {page}")


def keep(trained: Path, file: Path) -> None:
    """Add the runs' results to a file, a line each, with the machine; a run that was only tested again has its line."""
    runs = kept(file)
    for found in trained.glob("*/results.json"):
        of_run = json.loads(found.read_text(), parse_float=lambda number: float(f"{float(number):.6g}"))
        if runs.get(found.parent.name, {}).get("test") != of_run["test"]:
            what = {name: value for name, value in of_run.items() if name not in ABOUT_THE_RUN}
            runs[found.parent.name] = what | {"machine": machine()}
    lines = [f"{json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def kept(file: Path) -> dict[str, dict]:
    """The results of runs by name."""
    return json.loads(file.read_text()) if file.exists() else {}


def machine() -> str:
    """Name of the processor, as far as the system says it, its cores, and the day."""
    cpus = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpus.read_text() if cpus.exists() else "")
    return f"{(names or [platform.machine()])[0]}, {os.cpu_count()} cores, {datetime.date.today()}"


def text(results: Path = RESULTS) -> str:
    """The page with the tables that these results make."""

    def renewed(place: re.Match[str]) -> str:
        return place[1] + made(TABLES[place[2]], kept(results / place[2] / "results.json"))

    return MARKED.sub(renewed, PAGE.read_text(encoding="utf-8"))


def made(table: Table, runs: dict[str, dict]) -> str:
    """A table, its command, and the machine."""
    lines = ["| | published | here | seeds | seconds of a run |", "| --- | --- | --- | --- | --- |"]
    for line in table.lines:
        found = [run for name, run in sorted(runs.items()) if name.startswith(line.runs)]
        values = [value for run in found if (value := number(run, line.path)) is not None]
        seconds = [run["train_seconds"] + run["compile_seconds"] for run in found]
        time = f"{statistics.mean(seconds):.0f}" if seconds else "–"
        lines.append(f"| {line.label} | {line.published} | {spread(values)} | {len(values)} | {time} |")
    machines = {f"{run['machine']}, jax {run['versions']['jax']}" for run in runs.values()}
    command, made_on = f"```\n.venv/bin/python {table.command}\n```", "; ".join(sorted(machines)) or "no machine yet"
    return "\n".join(["", *lines, "", command, "", f"Made on: {made_on}.", "", ""])


def number(results: dict, path: str) -> float | None:
    """The number at a path of `results.json`; None where there is none."""
    for name in path.split("/"):
        results = results.get(name, {})
    return float(results) if isinstance(results, (int, float)) else None


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    found = [statistics.mean(values)] if values else []
    found += [statistics.stdev(values)] if len(values) > 1 else []
    formats = (",.0f" if abs(x) >= 100 or x == int(x) else ".4f" if abs(x) >= 0.001 else ".1e" for x in found)
    return " ± ".join(f"{x:{form}}" for x, form in zip(found, formats, strict=True)) or "not run"


if __name__ == "__main__":
    run(partial(parse, Papers), make)
