"""Damaged files of runs and of the models that ship."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from faults.cases import Case, Outcome, Verdict
from faults.commands_seen import failure_of, refusal, refusal_of_call
from faults.comparing import differences, evaluated_params, holds_nan, same
from faults.damage import damage
from faults.in_process import command
from faults.material import SHIPPED, TASK, arguments
from faults.watch import Seen, watch
from transformer_jax.inspection.page.page import inspection_page
from transformer_jax.tasks.registry import load_run
from transformer_jax.tasks.reverse import ReverseTrainer
from transformer_jax.trained.load import SHIPPED as SHIPPED_MODELS

USES = (
    "load a run",
    "load a shipped model",
    "resume",
    "evaluate a finished run",
    "--pretrained a run",
    "save a run",
    "look into a run",
)
SEQUENCES = np.arange(48).reshape(3, 16) % 10


def run(case: Case) -> Outcome:
    """Damage one file, and use what it belongs to."""
    rng = case.rng()
    use = rng.choice(USES)
    if use == "load a shipped model":
        original = SHIPPED_MODELS / rng.choice(SHIPPED)
    else:
        original = case.material / ("unfinished" if use == "resume" else "undisturbed/reverse") / TASK
    directory = case.directory / "own" / original.name
    shutil.copytree(original, directory)
    fault = f"{use}: {damage(directory, rng)}"
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    allowed = case.directory, case.material / "compiled"
    if use.startswith("load"):
        seen = watch(lambda: load_run(directory), *allowed)
        return failure_of(seen, fault, size) or refusal_of_call(seen, fault) or _judge_loaded(seen, original, fault)
    if use in ("save a run", "look into a run"):
        action = _save if use == "save a run" else _look_into
        seen = watch(lambda: action(directory, case.directory), *allowed)
        return failure_of(seen, fault, size) or refusal_of_call(seen, fault) or _judge_loaded(seen, original, fault)
    line = arguments(case.material, directory.parent)
    if use.startswith("--pretrained"):
        line = [f"--checkpoint-dir={case.directory / 'evaluation'}", f"--pretrained={directory}", *line[1:]]
    seen = watch(command("reverse.py", *line), *allowed)
    if outcome := failure_of(seen, fault, size) or refusal(seen, fault):
        return outcome
    if use.startswith("--pretrained"):
        return _judge_evaluation(seen, case, fault)
    return _judge_run(seen, directory, case.material / "undisturbed" / "reverse" / TASK, fault)


def _save(directory: Path, scratch: Path) -> Any:
    """The model in a directory, saved and opened."""
    load_run(directory).save(scratch / "saved")
    return load_run(scratch / "saved")


def _look_into(directory: Path, scratch: Path) -> Any:
    """The model in a directory, after its page was written."""
    trainer = load_run(directory)
    inspection_page(trainer, trainer.examples(SEQUENCES[:1])).save(scratch / "page.html")
    return trainer


@functools.cache
def _loaded(original: Path) -> Any:
    return load_run(original)


@functools.cache
def _evaluated(original: Path) -> Any:
    return evaluated_params(original)


def _warned(seen: Seen) -> bool:
    return bool(seen.warned) or "arn" in seen.stderr


def _judge_loaded(seen: Seen, original: Path, fault: str) -> Outcome:
    """The same model with the same parameters; or, with a warning, those of another evaluation."""
    ours, expected = seen.value, _loaded(original)
    if ours.model != expected.model or type(ours) is not type(expected):
        return Outcome(Verdict.WRONG, fault, "another model in silence")
    if holds_nan(ours.params):
        return Outcome(Verdict.WRONG, fault, "parameters that are not finite")
    if same(ours.params, expected.params):
        if isinstance(ours, ReverseTrainer) and not (ours.predict(SEQUENCES) == expected.predict(SEQUENCES)).all():
            return Outcome(Verdict.WRONG, fault, "other predictions in silence")
        return Outcome(Verdict.RECOVERED if _warned(seen) else Verdict.RIGHT, fault, "; ".join(seen.warned)[:200])
    others = _evaluated(original) if (original / "checkpoints").exists() else {}
    if any(same(ours.params, params) for params in others.values()):
        verdict = Verdict.RECOVERED if _warned(seen) else Verdict.WRONG
        return Outcome(verdict, fault, "; ".join(seen.warned)[:200] or "another checkpoint in silence")
    return Outcome(Verdict.WRONG, fault, "other parameters in silence")


def _judge_evaluation(seen: Seen, case: Case, fault: str) -> Outcome:
    """The accuracies of the undisturbed run; or, with a warning, of another evaluation."""
    results = json.loads((case.directory / "evaluation" / f"{TASK}_pretrained" / "results.json").read_text())
    expected = json.loads((case.material / "undisturbed" / "reverse" / TASK / "results.json").read_text())
    if all(results[name] == expected[name] for name in ("val_acc", "test_acc", "val", "test")):
        return Outcome(Verdict.RECOVERED if _warned(seen) else Verdict.RIGHT, fault, "; ".join(seen.warned)[:200])
    if _warned(seen) and np.isfinite(results["val"]["loss"]):
        return Outcome(Verdict.RECOVERED, fault, "; ".join(seen.warned)[:200])
    return Outcome(Verdict.WRONG, fault, f"validation accuracy {results['val_acc']}, not {expected['val_acc']}")


def _judge_run(seen: Seen, directory: Path, undisturbed: Path, fault: str) -> Outcome:
    """The undisturbed run; or, with a warning, one with the same last state, and curves without wrong points."""
    differing = differences(directory, undisturbed)
    text = "; ".join(differing.values())
    if not differing:
        return Outcome(Verdict.RECOVERED if _warned(seen) else Verdict.RIGHT, fault, "; ".join(seen.warned)[:200])
    only_gaps = "curves" not in differing or " points" in differing["curves"]
    if _warned(seen) and "newest" not in differing and only_gaps:
        return Outcome(Verdict.RECOVERED, fault, f"{text} ({'; '.join(seen.warned)})"[:300])
    is_lost = set(differing) == {"curves"} and only_gaps
    return Outcome(Verdict.LOST if is_lost else Verdict.WRONG, fault, f"{text}{' in silence' * (not _warned(seen))}")
