"""Damaged files of runs and of the included models: cut, bits flipped, digits changed, swapped, deleted, renamed."""

import functools
import random
import re
import shutil
from pathlib import Path

from faults.cases import Case, Outcome, Verdict, refusal
from faults.comparing import differences, evaluated_params, same
from faults.material import TASK, arguments
from faults.watch import Seen, command, watch
from transformer_jax.tasks.registry import load_run
from transformer_jax.trained.load import SHIPPED, shipped_models


def run(case: Case) -> Outcome:
    """Damage one file of a run or model, then use the run or model."""
    rng = case.rng()
    use = rng.choice(("load a run", "load a shipped model", "resume", "train a finished run"))
    if use == "load a shipped model":
        original = SHIPPED / rng.choice(shipped_models())
    else:
        original = case.material / ("unfinished" if use == "resume" else "undisturbed/reverse") / TASK
    directory = Path(shutil.copytree(original, case.directory / "own" / original.name))
    fault = f"{use}: {damage(directory, rng)}"
    size = sum(file.stat().st_size for file in _files(directory))
    if use.startswith("load"):
        seen = watch(lambda: load_run(directory), case.directory)
        return refusal(seen, fault, size, of_call=True) or _judge_loaded(seen, original, fault)
    seen = watch(command("reverse.py", *arguments(directory.parent)), case.directory)
    if outcome := refusal(seen, fault, size):
        return outcome
    return _judge_run(seen, directory, case.material / "undisturbed" / "reverse" / TASK, fault)


def damage(directory: Path, rng: random.Random) -> str:
    """Damage one file somewhere under a directory; return which, and how."""
    files = _files(directory)
    if rng.random() < 0.4:  # a checkpoint has many files, and the run few of its own
        files = [file for file in files if file.parent == directory]
    file = rng.choice(files)
    kind = rng.choice((_change, _change, _swap, _remove))
    return f"{file.relative_to(directory)} {kind(file, directory, rng)}"


def _files(directory: Path) -> list[Path]:
    """All files except TensorBoard's (docs/reliability.md says why)."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and "events" not in path.name)


def cut(content: bytes, rng: random.Random) -> bytes:
    """Truncate some bytes."""
    return content[: rng.choice((0, 1, len(content) // 2, max(0, len(content) - 1), rng.randrange(len(content) + 1)))]


def flip(content: bytes, rng: random.Random) -> bytes:
    """Flip a few bits."""
    flipped = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 8)) if content else 0):
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _digit(content: bytes, rng: random.Random) -> bytes:
    """Change a digit, so that text stays readable but has another meaning."""
    places = [found.start() for found in re.finditer(rb"\d", content)]
    if not places:
        return flip(content, rng)
    place = rng.choice(places)
    digit = rng.choice([digit for digit in b"0123456789" if digit != content[place]])
    return content[:place] + bytes([digit]) + content[place + 1 :]


def _change(file: Path, directory: Path, rng: random.Random) -> str:
    change = rng.choice((cut, flip, _digit))
    content = file.read_bytes()
    changed = change(content, rng)
    file.write_bytes(changed)
    places = [place for place, (old, new) in enumerate(zip(content, changed, strict=False)) if old != new]
    return f"{change.__name__.strip('_')}: {len(content)} bytes are {len(changed)}, changed at {places[:8]}"


def _swap(file: Path, directory: Path, rng: random.Random) -> str:
    other = rng.choice(_files(directory))
    first, second = file.read_bytes(), other.read_bytes()
    file.write_bytes(second)
    other.write_bytes(first)
    return f"swapped with {other.relative_to(directory)}"


def _remove(file: Path, directory: Path, rng: random.Random) -> str:
    target = file.parent if rng.random() < 0.3 and file.parent != directory else file
    if rng.random() < 0.5:
        return f"now in {target.rename(str(target) + rng.choice(('0', '.bak', '~'))).name}"
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    return f"deleted with {target.name}"


# The models as they are, made once in a process.
_loaded, _evaluated = functools.cache(load_run), functools.cache(evaluated_params)


def _warning(seen: Seen) -> str:
    return "; ".join((*seen.warned, seen.stderr.strip()))[:200].strip("; ")


def _judge_loaded(seen: Seen, original: Path, fault: str) -> Outcome:
    """The same model with the same parameters; or, with a warning, those of another evaluation."""
    ours, expected = seen.value, _loaded(original)
    warned = _warning(seen)
    if ours.model != expected.model or type(ours) is not type(expected):
        return Outcome(Verdict.WRONG, fault, "another model in silence")
    if same(ours.params, expected.params):
        return Outcome(Verdict.RECOVERED if warned else Verdict.RIGHT, fault, warned)
    others = _evaluated(original) if (original / "checkpoints").exists() else {}
    if warned and any(same(ours.params, params) for params in others.values()):
        return Outcome(Verdict.RECOVERED, fault, warned)
    return Outcome(Verdict.WRONG, fault, "other parameters")


def _judge_run(seen: Seen, directory: Path, undisturbed: Path, fault: str) -> Outcome:
    """The undisturbed run; or, with a warning, one with the same last state, and curves without wrong points."""
    differing = differences(directory, undisturbed)
    text = "; ".join(differing.values())
    warned = _warning(seen)
    if not differing:
        return Outcome(Verdict.RECOVERED if warned else Verdict.RIGHT, fault, warned)
    only_gaps = "curves" not in differing or " points" in differing["curves"]
    if warned and "newest" not in differing and only_gaps:
        return Outcome(Verdict.RECOVERED, fault, f"{text} ({warned})")
    is_lost = set(differing) == {"curves"} and only_gaps
    return Outcome(Verdict.LOST if is_lost else Verdict.WRONG, fault, f"{text}; warned: {warned or 'nothing'}")
