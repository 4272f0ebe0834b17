"""Reproduce published tables: train the missing runs, and update the tables of `docs/papers.md` (`make papers`).

Interrupted runs resume; finished runs are only tested again. Runs are stored under `--checkpoint-dir`, their results
under `experiments/papers/results/`. `--quick` trains for a few steps and writes only under `--checkpoint-dir`.

On a machine that is lent for a while, only seeds whose results are not kept yet are run, several at once, and stopped
in time. The same command goes on from what is left of them in `--checkpoint-dir`:

    python experiments/papers/make_tables.py --rows Scan,InductionByLength --at-once 5 --budget-minutes 12
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
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

from page import PAGE, RESULTS, Table, kept, picture, text
from tables import TABLES

from transformer_jax import run
from transformer_jax.cli import parse
from transformer_jax.errors import InputError
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.tasks.sweep import parse_seeds

ROOT = Path(__file__).parents[2]
IMAGES = PAGE.parent / "images"
# keys of a run's results.json that are not kept
ABOUT_THE_RUN = ("settings", "model", "git_commit", "num_devices")
LEAST_SECONDS = 120  # in which a command reaches a checkpoint
SAVING_SECONDS = 30  # in which it saves one when it is stopped


@dataclasses.dataclass(frozen=True)
class Papers:
    """Train the runs that the tables need, and update the tables."""

    checkpoint_dir: Path = Path("checkpoints")  # parent of the runs
    # a few steps with one seed each; the page and its results go below checkpoint_dir
    quick: bool = False
    # whose runs are trained; the page is renewed in any case, from the results that are kept
    train: Literal["all", "none", *TABLES] = "all"
    # tables in place of train, separated by commas, in the order in which their runs are trained
    rows: str | None = None
    at_once: int = setting(1, least=1)  # processes, each with one seed
    # minutes after which runs are stopped, at a checkpoint; none: all are trained to their end
    budget_minutes: float | None = None

    __post_init__ = set_checked_fields

    @property
    def names(self) -> list[str]:
        """Names of the tables whose runs are trained."""
        if self.rows is None:
            return {"all": list(TABLES), "none": []}.get(self.train, [self.train])
        names = self.rows.split(",")
        for name in names:
            if name not in TABLES:
                raise InputError(f"rows has {name}; it may have {', '.join(TABLES)}")
        return names


def make(papers: Papers) -> None:
    """Run the commands of the tables, keep the results, and update the page."""
    below = papers.checkpoint_dir.resolve()
    results, page, images = (
        (below / "results", below / PAGE.name, below) if papers.quick else (RESULTS, PAGE, IMAGES)
    )
    work: list[tuple[str, list[str]]] = []
    for name in papers.names:
        table = TABLES[name]
        if table.data is not None and (papers.quick or not (ROOT / table.data).exists()):
            print(f"# {name}: needs {table.data}", flush=True)
            continue
        runs = kept(results / name / "results.json")
        for command in commands_of(table, runs, papers):
            work.append((name, [*command, "--checkpoint-dir", str(below)]))
    end = None if papers.budget_minutes is None else time.monotonic() + 60 * papers.budget_minutes
    with ThreadPoolExecutor(papers.at_once) as pool:
        in_order = map if papers.at_once == 1 else pool.map
        ended = in_order(lambda each: train(*each, end, papers.at_once > 1), work)
        for (name, _), _ in zip(work, ended, strict=True):
            keep(below / name, results / name / "results.json")
    for name, table in TABLES.items():
        if table.picture is not None and (runs := kept(results / name / "results.json")):
            picture(table.picture, runs).savefig(images / f"papers_{name}.png", dpi=80)
    page.write_text(text(TABLES, results), encoding="utf-8")
    print(f"Written: {page}")


def commands_of(table: Table, runs: Mapping[str, dict], papers: Papers) -> list[list[str]]:
    """Commands that train a table's runs: one for all, or one for each seed without a result for each line."""
    arguments = shlex.split(table.command)
    if papers.quick:
        return [[*arguments, *shlex.split(table.quick), "--seeds", "0"]]
    if papers.at_once == 1 and papers.budget_minutes is None:
        return [arguments]
    missing = []
    for seed in parse_seeds(arguments[arguments.index("--seeds") + 1]):
        of_seed = [name for name in runs if name.endswith(f"seed{seed}")]
        if not all(any(name.startswith(line.runs) for name in of_seed) for line in table.lines):
            missing.append(seed)
    return [[*arguments, "--seeds", str(seed)] for seed in missing]


def train(name: str, command: list[str], end: float | None, shares_device: bool) -> None:
    """Run a command; towards the end of the time it is stopped, at a checkpoint, or is not begun.

    Args:
        name: the table.
        command: arguments of Python.
        end: the time, by `time.monotonic`.
        shares_device: whether other commands run at once, so that none may take all of an accelerator's memory.
    """
    left = None if end is None else end - time.monotonic() - SAVING_SECONDS
    if left is not None and left < LEAST_SECONDS:
        print(f"# {name}: not begun, {left:.0f} seconds are left", flush=True)
        return
    print(f"# {name}", flush=True)
    allocation = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if shares_device else {}
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, env=os.environ | allocation)
    try:
        status = process.wait(left)
    except subprocess.TimeoutExpired:
        process.terminate()  # it saves a checkpoint
        process.wait()
        print(f"# {name}: stopped, the same command goes on", flush=True)
        return
    if status != 0:
        raise subprocess.CalledProcessError(status, command)


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
    if not runs:
        return
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
