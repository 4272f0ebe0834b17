"""A case of the campaign, and its verdict."""

import enum
import random
from pathlib import Path
from typing import NamedTuple


class Verdict(enum.StrEnum):
    """How a case ended; the last three are failures."""

    RIGHT = "bitwise right"  # the result of the undisturbed run
    RECOVERED = "recovered"  # went on with a warning, from another good checkpoint for example
    CLEAN = "clean error"  # one line that names the fault, and status 2
    OBSCURE = "obscure"  # a traceback, another library's error, noise, too much memory, no end
    WRONG = "wrong"  # another answer in silence, NaN, code executed, a file written outside the run's directory
    LOST = "lost"  # trained steps or good checkpoints are gone


FAILURES = (Verdict.OBSCURE, Verdict.WRONG, Verdict.LOST)


class Outcome(NamedTuple):
    """What was done to the program, and what it did."""

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
