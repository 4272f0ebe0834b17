"""Damaged and hostile files of a run that is loaded, resumed, or trained again."""

import contextlib
import io
import os
import random
import resource
import shutil
import signal
import warnings
from pathlib import Path

import psutil
from finished_runs import REVERSE

from faults.outcomes import Outcome, Verdict, differences, same
from transformer_jax import InputError, load_run, train_reverse

MOST_MEMORY = 2 * 2**30  # bytes that a call may take
MOST_SECONDS = 300  # that it may take
WAYS = "cut", "flip", "flip", "digit", "swap", "rename", "link", "pipe"
TARGETS = "/dev/zero", "/dev/null", "/proc/self/mem", "/etc/passwd", ".", "gone"


def open_hostile(number: int, rng: random.Random, work_dir: Path, directory: Path) -> Outcome:
    """Damage one file of a copy of a finished run in a directory, and use the copy."""
    use = ("load", "resume", "train again")[number % 3]
    original = work_dir / "finished" / "ReverseTask"
    if not original.exists():
        _train(original)
    run = Path(shutil.copytree(original, directory / original.name))
    if use == "resume":  # as if it had been killed in its last epoch
        (run / "results.json").unlink()
        shutil.rmtree(max((run / "checkpoints").iterdir(), key=lambda path: int(path.name)))
    fault = f"{use}: {_spoil(run, rng)}"
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (psutil.Process().memory_info().data + MOST_MEMORY, limits[1]))
    signal.signal(signal.SIGALRM, _end)
    signal.alarm(MOST_SECONDS)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            if use == "load":
                differing = [] if same(load_run(run).params, load_run(original).params) else ["parameters"]
            else:
                _train(run)
                differing = differences(run, original)
    except InputError as error:
        return Outcome(Verdict.OBSCURE if "\n" in str(error) else Verdict.CLEAN, fault, str(error)[:300])
    except Exception as error:  # every one is a finding
        return Outcome(Verdict.OBSCURE, fault, f"{type(error).__name__}: {error}"[:300])
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_DATA, limits)
    if caught and not any(what.startswith("newest") for what in differing):
        return Outcome(Verdict.RECOVERED, fault, str(caught[0].message))
    return Outcome(Verdict.WRONG if differing else Verdict.RIGHT, fault, str(differing))


def _end(*_: object) -> None:
    raise RuntimeError(f"it did not end within {MOST_SECONDS} seconds")  # an OSError might be caught


def _train(run: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        train_reverse(checkpoint_dir=run.parent, **REVERSE)


def _spoil(run: Path, rng: random.Random) -> str:
    """Change, swap, rename or replace one file, except TensorBoard's (docs/reliability.md says why)."""
    files = sorted(path for path in run.rglob("*") if path.is_file() and "events" not in path.name)
    if rng.random() < 0.4:  # a checkpoint has many files, and the run few
        files = [file for file in files if file.parent == run]
    file, other, way, target = rng.choice(files), rng.choice(files), rng.choice(WAYS), rng.choice(TARGETS)
    content = bytearray(file.read_bytes())
    places = [place for place, byte in enumerate(content) if way != "digit" or chr(byte).isdecimal()]
    place = rng.choice(places or [0])
    if way == "cut":
        del content[place:]
    elif places and way in ("flip", "digit"):
        content[place] ^= 1 if way == "digit" else 1 << rng.randrange(8)  # 0 and 1 are exchanged, 2 and 3, …
    elif way == "swap":
        swapped, content = content, bytearray(other.read_bytes())
        other.write_bytes(swapped)
    file.write_bytes(content)
    if way in ("rename", "link", "pipe"):
        file.rename(run.parent / "moved")
    if way == "link":
        file.symlink_to(target)
    elif way == "pipe":
        os.mkfifo(file)
    return f"{file.relative_to(run)} {way} {other.name} {target} at {place}"
