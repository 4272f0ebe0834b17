"""A case of the campaign, and its verdict."""

import enum
import random
import re
from pathlib import Path
from typing import NamedTuple

from faults.watch import GIB, Seen
from transformer_jax.errors import InputError

DIVERGED = 1  # exit status of a training whose numbers are not finite
MAX_NOISE = 4  # lines on standard error


class Verdict(enum.StrEnum):
    """How a case ended; the last three are failures."""

    RIGHT = "bitwise right"  # the result of the undisturbed run
    RECOVERED = "recovered"  # went on with a warning, from another good checkpoint for example
    CLEAN = "clean error"  # a one-line error that names the fault, and status 2
    OBSCURE = "obscure"  # a traceback, another library's error, noise, too much memory, no end
    WRONG = "wrong"  # another answer in silence, NaN, code executed, a file written outside the run's directory
    LOST = "lost"  # trained steps or good checkpoints are gone


FAILURES = (Verdict.OBSCURE, Verdict.WRONG, Verdict.LOST)


class Outcome(NamedTuple):
    """The fault, and how the program reacted."""

    verdict: Verdict
    fault: str
    seen: str = ""


class Case(NamedTuple):
    """One fault, chosen by the seed and its number alone."""

    kind: str
    number: int
    seed: int
    material: Path  # runs that were made once; read only
    directory: Path  # of this case alone, empty

    def rng(self) -> random.Random:
        """The generator that chooses the fault."""
        return random.Random(f"{self.seed}:{self.kind}:{self.number}")


def noise(stderr: str) -> str | None:
    """Return why a command's standard error is not clean; None if it is."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    if "Traceback (most recent call last)" in stderr:
        last = [line for line in lines if not line[0].isspace()][-1]
        return f"a traceback: {last[:200]}"
    return f"{len(lines)} lines on standard error: {lines[0][:200]}" if len(lines) > MAX_NOISE else None


def refusal(seen: Seen, fault: str, size: int = 0, *, of_call: bool = False) -> Outcome | None:
    """Return the verdict on a command that failed or did harm; None for one that succeeded.

    Args:
        seen: what was observed of the command.
        fault: description of the fault.
        size: bytes that the command read.
        of_call: whether it was a call in Python, whose clean error is an `InputError`, and not a command.
    """
    text = seen.stderr.strip()[:300]
    if seen.violations:  # executed code, files outside
        return Outcome(Verdict.WRONG, fault, "; ".join(seen.violations[:3]))
    if seen.peak > max(2 * GIB, 4 * size):
        return Outcome(Verdict.OBSCURE, fault, f"{seen.peak / GIB:.1f} GiB of memory, or an allocation was refused")
    if of_call and isinstance(seen.error, InputError) and str(seen.error).count("\n") < 3:
        return Outcome(Verdict.CLEAN, fault, str(seen.error)[:300])
    if problem := noise(seen.stderr) if seen.error is None else f"{type(seen.error).__name__}: {seen.error}"[:300]:
        return Outcome(Verdict.OBSCURE, fault, problem)
    if not seen.status:
        return None
    is_named = re.search(r"^\S+\.py: error: \S", seen.stderr, re.MULTILINE)
    if seen.status not in (2, DIVERGED) or not is_named:
        return Outcome(Verdict.OBSCURE, fault, f"status {seen.status}: {text}")
    return Outcome(Verdict.CLEAN, fault, text)
