"""Reproduce published tables: train the missing runs, and update the tables of `docs/papers.md` (`make papers`).

Interrupted runs resume; finished runs are only tested again. Runs are stored under `--checkpoint-dir`, their results
under `experiments/papers/results/`. `--quick` trains for a few steps and writes only under `--checkpoint-dir`.
"""

import dataclasses
import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Literal

from page import PAGE, RESULTS, kept, picture, text
from tables import TABLES

from transformer_jax import run
from transformer_jax.cli import parse

ROOT = Path(__file__).parents[2]
IMAGES = PAGE.parent / "images"
# keys of a run's results.json that are not kept
ABOUT_THE_RUN = ("settings", "model", "git_commit", "num_devices")


@dataclasses.dataclass(frozen=True)
class Papers:
    """Train the runs that the tables need, and update the tables."""

    checkpoint_dir: Path = Path("checkpoints")  # parent of the runs
    # a few steps with one seed each; the page and its results go below checkpoint_dir
    quick: bool = False
    # whose runs are trained; the page is renewed in any case, from the results that are kept
    train: Literal["all", "none", *TABLES] = "all"


def make(papers: Papers) -> None:
    """Run the command of each table, keep the results, and update the page."""
    below = papers.checkpoint_dir.resolve()
    results, page, images = (
        (below / "results", below / PAGE.name, below) if papers.quick else (RESULTS, PAGE, IMAGES)
    )
    for name, table in TABLES.items():
        is_here = table.data is None or ((ROOT / table.data).exists() and not papers.quick)
        if papers.train in ("all", name) and not is_here:
            print(f"# {name}: needs {table.data}", flush=True)
        elif papers.train in ("all", name):
            print(f"# {name}", flush=True)
            more = [
                "--checkpoint-dir",
                str(below),
                *(["--seeds", "0", *table.quick.split()] if papers.quick else []),
            ]
            subprocess.run(
                [sys.executable, *shlex.split(table.command), *more], cwd=ROOT, check=True
            )
            keep(below / name, results / name / "results.json")
        if table.picture is not None and (runs := kept(results / name / "results.json")):
            picture(table.picture, runs).savefig(images / f"papers_{name}.png", dpi=80)
    page.write_text(text(TABLES, results), encoding="utf-8")
    print(f"Written: {page}")


def keep(trained: Path, file: Path) -> None:
    """Write the runs' results to a file, one line per run, with the machine; unchanged test results keep their line."""
    runs = kept(file)
    for found in trained.glob("*/results.json"):
        of_run = json.loads(
            found.read_text(), parse_float=lambda number: float(f"{float(number):.6g}")
        )
        if runs.get(found.parent.name, {}).get("test") != of_run["test"]:
            what = {name: value for name, value in of_run.items() if name not in ABOUT_THE_RUN}
            runs[found.parent.name] = what | {"machine": machine(of_run["device"])}
    lines = [f"{json.dumps(name)}: {json.dumps(runs[name])}" for name in sorted(runs)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def machine(device: str) -> str:
    """Name of the accelerator, or model (else architecture) and number of cores of the CPU, with today's date.

    Args:
        device: its kind, as in `results.json`.
    """
    if device != "cpu":
        return f"{device}, {datetime.date.today()}"
    cpus = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", cpus.read_text() if cpus.exists() else "")
    return f"{(names or [platform.machine()])[0]}, {os.cpu_count()} cores, {datetime.date.today()}"


if __name__ == "__main__":
    run(partial(parse, Papers), make)
