"""The verdicts on cases of the campaign, and the bitwise comparison of a run with the undisturbed one."""

import contextlib
import enum
import json
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from events import is_timing, read_scalars
from jaxtyping import PyTree

from transformer_jax.config import Criterion
from transformer_jax.runs.checkpoints import Checkpoint, Checkpoints


class Verdict(enum.StrEnum):
    """How a case ended; the last three are failures."""

    RIGHT = "bitwise right"  # the result of the undisturbed run
    RECOVERED = "recovered"  # went on with a warning, from another good checkpoint for example
    CLEAN = "clean error"  # an `InputError` of one line
    OBSCURE = "obscure"  # another error, or too much memory
    WRONG = "wrong"  # another result in silence
    LOST = "lost"  # trained steps are gone


FAILURES = (Verdict.OBSCURE, Verdict.WRONG, Verdict.LOST)


class Outcome(NamedTuple):
    """The fault, and how the program reacted."""

    verdict: Verdict
    fault: str
    seen: str


def differences(run: Path, undisturbed: Path) -> list[str]:
    """List what differs between two finished runs."""
    results, expected = (json.loads((path / "results.json").read_text()) for path in (run, undisturbed))
    found = [f"results: {name}" for name in ("val", "test", "steps") if results[name] != expected[name]]
    criterion = Criterion.parse(expected["criterion"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a damaged checkpoint that the run passed over may still be there
        for which in ("newest", "best"):
            ours, theirs = (_checkpoint(path, criterion, which) for path in (run, undisturbed))
            if ours.step != theirs.step or not same(ours.state, theirs.state):
                found.append(f"{which} checkpoint: of step {ours.step}; undisturbed: {theirs.step}")
    return found if _curves(run) == _curves(undisturbed) else [*found, "curves"]


def same(ours: PyTree, theirs: PyTree) -> bool:
    """Whether two trees have the same names and bitwise the same arrays."""
    if jax.tree.structure(ours) != jax.tree.structure(theirs):
        return False
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and np.shape(a) == np.shape(b) for a, b in pairs)


def _checkpoint(run: Path, criterion: Criterion, which: str) -> Checkpoint:
    with contextlib.closing(Checkpoints(run / "checkpoints", criterion, create=False)) as checkpoints:
        return getattr(checkpoints, which)()


def _curves(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the points of each curve, except durations and test results, whose step is that of the best model."""
    curves = read_scalars(run, as_pairs=True)
    return {tag: points for tag, points in curves.items() if not (is_timing(tag) or tag.startswith("test/"))}
