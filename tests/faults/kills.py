"""A training that is killed with SIGKILL, and that the same command then completes."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from commands import path_of
from processes import free_address
from repository import QUICKLY, REPOSITORY

from faults.outcomes import Outcome, Verdict, differences

PATIENCE = 600  # seconds
REVERSE = (
    "reverse.py", "--max-epochs=6", "--train-size=1600", "--batch-size=64", "--val-size=257", "--test-size=257",
    "--warmup=7", "--dropout-prob=0.1", "--eval-every=1", "--checkpoint-every=7",
)  # fmt: skip
TRAININGS = {
    "reverse": (*REVERSE, "--num-devices=1"),
    "mesh": (*REVERSE, "--mesh=data=2,fsdp=2", "--scan-layers", "--remat=all", "--num-layers=2"),
    "two processes": (*REVERSE, "--distributed", "--num-processes=2"),
}  # fmt: skip


def kill(number: int, rng: random.Random, work_dir: Path, directory: Path) -> Outcome:
    """Kill a training in a directory at one to three random moments, then let it finish."""
    name = list(TRAININGS)[number % len(TRAININGS)]
    undisturbed = work_dir / name
    if not undisturbed.exists():
        _finish(name, undisturbed)
    evaluated, moments = [0], []
    for _ in range(rng.choice((1, 1, 2, 3))):
        together = _begin(name, directory)
        moments.append(_wait_for_moment(together[0], directory / "run", rng))
        _kill(together)
        steps = re.findall(r"step (\d+): validation", (directory / "printed").read_text())
        evaluated += map(int, steps[:-1])  # the checkpoint of the last one may be incomplete
    fault = f"{name}: SIGKILL {', '.join(moments)}"
    errors = _finish(name, directory, "--steps-per-call=5")  # as other calls change nothing
    if not (directory / "run" / "results.json").exists() or "Traceback" in errors:
        return Outcome(Verdict.OBSCURE, fault, errors[-300:])
    printed = (directory / "printed").read_text()
    begun_at = max(map(int, re.findall(r"Going on after step (\d+)", printed)), default=0)
    differing = differences(directory / "run", undisturbed / "run")
    if begun_at < max(evaluated):
        return Outcome(Verdict.LOST, fault, f"went on after step {begun_at}, but {max(evaluated)} was saved")
    if differing:
        return Outcome(Verdict.WRONG, fault, "; ".join(differing))
    return Outcome(Verdict.RECOVERED if errors else Verdict.RIGHT, fault, errors)


def _begin(name: str, parent: Path, *more: str) -> list[subprocess.Popen]:
    """Start a training whose run and output are under a directory; the first process writes the small files."""
    script, *settings = TRAININGS[name]
    parent.mkdir(parents=True, exist_ok=True)
    line = [sys.executable, path_of(script), f"--checkpoint-dir={parent}", "--name=run", *settings, *more]
    coordinator = f"--coordinator={free_address()}"
    own = [[coordinator, f"--process-id={n}"] for n in (0, 1)] if "--distributed" in settings else [[]]
    places = {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1", "JAX_NUM_CPU_DEVICES": "4"}
    options = {"env": os.environ | QUICKLY | places, "start_new_session": True}
    with open(parent / "printed", "w") as out, open(parent / "errors", "w") as errors:
        return [subprocess.Popen([*line, *flags], stdout=out, stderr=errors, **options) for flags in own]


def _finish(name: str, parent: Path, *more: str) -> str:
    """Run a training to its end; return what it wrote to standard error."""
    together = _begin(name, parent, *more)
    try:
        for process in together:
            process.wait(PATIENCE)
    finally:
        _kill(together)
    return (parent / "errors").read_text().strip()


def _kill(together: list[subprocess.Popen]) -> None:
    for process in together:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its children
        process.wait()


def _wait_for_moment(process: subprocess.Popen, run: Path, rng: random.Random) -> str:
    """Wait for a random change of the run's directory and, in half of the cases, a random time; return which."""
    changes, seconds = rng.choice(((rng.randrange(1, 60), 0.0), (1, 3 * rng.random())))
    listings: set[frozenset[Path]] = set()
    while process.poll() is None and len(listings) <= changes:
        listings.add(frozenset((*run.glob("*"), *run.glob("checkpoints/*"))))
        time.sleep(0.001)
    time.sleep(seconds)
    return f"{seconds:.2f} s after change {changes} of the directory"
