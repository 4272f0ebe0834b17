"""Kill a real training command again and again, and see that it ends as if nothing had happened.

`python tests/kill_and_resume.py --kills 100` does it a hundred times, and starts the command as often.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import filterfalse
from pathlib import Path

import jax
import numpy as np
from events import is_timing, read_scalars
from repository import REPOSITORY

from transformer_jax.config import Criterion
from transformer_jax.runs.checkpoints import Checkpoints

CRITERION = Criterion("accuracy", "max")  # of the reverse task
# A process that is killed could leave half of a compiled program in the cache that all tests share: it writes none.
READ_ONLY_CACHE = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": str(2**40)}
PATIENCE = 300  # seconds that one start may take


def command(script: str, parent: Path, *settings: object) -> list[str]:
    return [
        sys.executable,
        str(REPOSITORY / "experiments" / script),
        f"--checkpoint-dir={parent}",
        *map(str, settings),
    ]


def run_with_kills(arguments: list[str], run: Path, signals: Sequence[int], seed: int = 0) -> list[int]:
    """Run a command to its end, ended by each of these signals, a random moment after it has made progress.

    Returns:
        The newest checkpoint's step at each signal.
    """
    rng = random.Random(seed)
    steps = []
    for signal_number in signals:
        before = _checkpoints(run)
        process = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ | READ_ONLY_CACHE
        )
        deadline = time.monotonic() + PATIENCE
        while _checkpoints(run) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.1)
        process.send_signal(signal_number)
        output, _ = process.communicate(timeout=PATIENCE)
        if process.returncode == 0:
            raise AssertionError("the run ended before it was killed: let it train longer")
        expected = -signal_number if signal_number == signal.SIGKILL else 128 + signal_number
        if process.returncode != expected:
            raise AssertionError(f"status {process.returncode}: {output}")
        steps.append(max(_checkpoints(run), default=0))
    last = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
    if last.returncode:
        raise AssertionError(last.stdout)
    return steps


def _checkpoints(run: Path) -> set[int]:
    return {int(path.name) for path in (run / "checkpoints").glob("*") if path.name.isdigit()}


def assert_same_run(run: Path, uninterrupted: Path) -> None:
    """The same parameters bit for bit, the same best step, the same curves without gaps or doubles."""
    ours, theirs = (Checkpoints(path / "checkpoints", CRITERION, create=False) for path in (run, uninterrupted))
    assert ours.best_step == theirs.best_step
    assert ours.steps[-1] == theirs.steps[-1]
    for step in {ours.best_step, ours.steps[-1]}:
        a, b = (jax.tree.leaves(checkpoints.read(step).state) for checkpoints in (ours, theirs))
        for leaf, expected in zip(a, b, strict=True):
            np.testing.assert_array_equal(leaf, expected)
    scalars, expected = read_scalars(run, as_pairs=True), read_scalars(uninterrupted, as_pairs=True)
    assert scalars.keys() == expected.keys()
    for tag in filterfalse(is_timing, expected):
        assert scalars[tag] == expected[tag], tag
    results = [json.loads((path / "results.json").read_text()) for path in (run, uninterrupted)]
    for name in ("val_acc", "test_acc", "steps"):
        assert results[0][name] == results[1][name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills = parser.parse_args().kills
    settings = ("--dropout-prob=0.1", "--checkpoint-every=7", "--eval-every=1", f"--max-epochs={max(4, kills // 3)}")
    with tempfile.TemporaryDirectory() as parent:
        paths = [Path(parent) / name for name in ("killed", "uninterrupted")]
        commands = [command("reverse.py", path, "--train-size=12800", *settings) for path in paths]
        steps = run_with_kills(commands[0], paths[0] / "ReverseTask", [signal.SIGKILL] * kills)
        subprocess.run(commands[1], check=True, stdout=subprocess.DEVNULL)
        assert_same_run(*(path / "ReverseTask" for path in paths))
    print(f"{kills} kills, at the checkpoints of steps {steps}: the same run, bit for bit")


if __name__ == "__main__":
    main()
