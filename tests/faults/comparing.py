"""Bitwise comparison of a run with the undisturbed one."""

import contextlib
import json
from itertools import filterfalse
from pathlib import Path
from typing import Any

import jax
import numpy as np
from events import is_timing, read_scalars
from jaxtyping import PyTree

from transformer_jax.config import Criterion
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.record import STATE
from transformer_jax.runs.state_arrays import plain_path, read_arrays


def differences(run: Path, undisturbed: Path) -> dict[str, str]:
    """List what differs between two finished runs: `newest` state, `best` state, `curves`, `results`."""
    found = {}
    with _opened(run) as ours, _opened(undisturbed) as theirs:
        steps = {"newest": [max(of.steps, default=None) for of in (ours, theirs)]}
        steps["best"] = [ours.best_step, theirs.best_step]
        for which, (step, expected) in steps.items():
            if step != expected:
                found[which] = f"the {which} checkpoint is of step {step}, not {expected}"
            elif step is not None and not _same_state(ours, theirs, step):
                found[which] = f"the {which} state differs"
    if problem := _curves(run, undisturbed):
        found["curves"] = problem
    results = [_results(path) for path in (run, undisturbed)]
    if differing := [name for name in ("val", "test", "steps") if results[0][name] != results[1][name]]:
        found["results"] = f"the results differ in {', '.join(differing)}"
    return found


def _same_state(ours: Checkpoints, theirs: Checkpoints, step: int) -> bool:
    expected = _state(theirs, step)
    try:
        return same(_state(ours, step), expected)
    except Exception:  # of Orbax: it can't be read
        return False


def _state(checkpoints: Checkpoints, step: int) -> PyTree:
    checkpoints._records.read(step, check_files=True)  # with its digests
    with plain_path(checkpoints.directory / str(step) / STATE) as directory:
        return read_arrays(directory, None)


def evaluated_params(run: Path) -> dict[int, PyTree]:
    """Return the parameters of each evaluated checkpoint."""
    with _opened(run) as checkpoints:
        steps = [step for step in checkpoints.steps if checkpoints.metrics(step) is not None]
        return {step: _state(checkpoints, step)["params"] for step in steps}


def same(ours: PyTree, theirs: PyTree) -> bool:
    """Whether two trees have the same names and bitwise the same arrays."""
    if str(jax.tree.structure(ours)) != str(jax.tree.structure(theirs)):
        return False
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and np.shape(a) == np.shape(b) for a, b in pairs)


def _curves(run: Path, undisturbed: Path) -> str | None:
    ours, theirs = (read_scalars(path, as_pairs=True) for path in (run, undisturbed))
    if more := ours.keys() - theirs.keys():
        return f"{more} are curves of this run alone"
    for tag in filterfalse(is_timing, theirs):
        if tag.startswith("test/"):  # as the results, which are of the best model
            continue
        points, expected = ours.get(tag, []), theirs[tag]
        if others := [point for point in points if point not in expected]:
            return f"{tag} has other values, at step {others[0][0]} for example"
        if len(points) != len(set(points)):
            return f"{tag} has a point twice"
        if len(points) < len(expected):
            return f"{tag} has {len(points)} of {len(expected)} points"
    return None


def _opened(run: Path) -> contextlib.closing[Checkpoints]:
    criterion = Criterion.parse(_results(run)["criterion"])
    return contextlib.closing(Checkpoints(run / "checkpoints", criterion, create=False))


def _results(run: Path) -> Any:
    return json.loads((run / "results.json").read_text())
