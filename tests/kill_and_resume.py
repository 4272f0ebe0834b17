"""Kill a real training command again and again, and see that it ends as if nothing had happened.

`make faults ARGS="--kills 100"` does it a hundred times.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from commands import path_of
from faults.comparing import differences

# A process that is killed could leave half of a compiled program in the cache that all tests share: it writes none.
READ_ONLY_CACHE = {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": str(2**40)}
PATIENCE = 300  # seconds that one start may take


def command(script: str, parent: Path, *settings: object) -> list[str]:
    return [sys.executable, path_of(script), f"--checkpoint-dir={parent}", *map(str, settings)]


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
    assert differences(run, uninterrupted) == {}
