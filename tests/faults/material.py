"""Runs that are made once for a campaign, and their answers."""

import hashlib
import shutil
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock
from processes import free_address
from repository import REPOSITORY

from faults.processes import Running

TASK = "ReverseTask"
SETTINGS = (
    "--max-epochs=6", "--train-size=1600", "--batch-size=64", "--val-size=257", "--test-size=257", "--warmup=7",
    "--dropout-prob=0.1", "--eval-every=1", "--checkpoint-every=7",
)  # fmt: skip
STEPS = 150  # of a run with these settings


class Training(NamedTuple):
    """A training command that cases interrupt."""

    script: str
    runs: tuple[str, ...]  # directories of its runs below --checkpoint-dir
    settings: tuple[str, ...]
    num_processes: int = 1

    def begin(self, line: Sequence[str]) -> list[Running]:
        """Start it; the first process writes the small files."""
        if self.num_processes == 1:
            return [Running(self.script, *line)]
        together = ["--distributed", f"--coordinator={free_address()}", f"--num-processes={self.num_processes}"]
        return [Running(self.script, *line, *together, f"--process-id={n}") for n in range(self.num_processes)]


REVERSE = Training("reverse.py", (TASK,), (*SETTINGS, "--num-devices=1"))
TRAININGS = {
    "reverse": REVERSE,
    "mesh": Training("reverse.py", (TASK,), (
        *SETTINGS, "--mesh=data=2,fsdp=2", "--scan-layers", "--remat=all", "--num-layers=2",
    )),
    "seeds": Training("reverse.py", (f"{TASK}/seed0", f"{TASK}/seed1"), (
        *SETTINGS, "--num-devices=1", "--max-epochs=3", "--seeds=0..1",
    )),
    "two processes": Training("reverse.py", (TASK,), SETTINGS, num_processes=2),
    "language model": Training("language_model.py", ("LanguageModelTask",), (
        f"--data={REPOSITORY / 'docs' / 'attention.md'}", "--max-epochs=9", "--train-size=320", "--batch-size=8",
        "--seq-len=32", "--model-dim=16", "--num-layers=2", "--num-heads=2", "--dim-feedforward=24", "--max-new=8",
        "--warmup=3", "--eval-every=1", "--checkpoint-every=7", "--num-devices=1",
    )),
}  # fmt: skip


def make_material(work_dir: Path) -> Path:
    """Return the directory of the runs; make the runs if it does not exist."""
    # Runs of another version of the package or of JAX cannot be reused.
    digest = hashlib.sha256(f"{sys.version} {version('jaxlib')}".encode())
    for file in sorted((REPOSITORY / "transformer_jax").rglob("*.py")):
        digest.update(file.read_bytes())
    material = work_dir / f"material-{digest.hexdigest()[:12]}"
    if not (material / "complete").exists():
        shutil.rmtree(material, ignore_errors=True)  # of a campaign that was stopped
        material.mkdir(parents=True)
        undisturbed("reverse", material)
        _make_unfinished(material)
        (material / "complete").touch()
    return material


def undisturbed(name: str, material: Path) -> Path:
    """Return the directory with the runs of one of `TRAININGS`; make the runs if they do not exist."""
    parent = material / "undisturbed" / name
    with FileLock(material / f"{name}.lock"):
        if not parent.exists():
            making = parent.with_name(f"{name} unfinished")
            shutil.rmtree(making, ignore_errors=True)
            line = arguments(making, TRAININGS[name])
            for ended in [running.wait() for running in TRAININGS[name].begin(line)]:
                if ended.status != 0:
                    raise RuntimeError(f"the undisturbed run failed with status {ended.status}:\n{ended.stderr}")
            making.rename(parent)
    return parent


def arguments(parent: Path, training: Training = REVERSE) -> list[str]:
    """Return the command line of the run under `parent`."""
    return [f"--checkpoint-dir={parent}", *training.settings]


def _make_unfinished(material: Path) -> None:
    """Make a run that was stopped after its third evaluation."""
    running = Running("reverse.py", *arguments(material / "unfinished"))
    running.wait_for("validation", 3)
    running.send(signal.SIGTERM)
    ended = running.wait()
    if ended.status != 128 + signal.SIGTERM:
        raise RuntimeError(f"a run could not be stopped: status {ended.status}\n{ended.stderr}")
