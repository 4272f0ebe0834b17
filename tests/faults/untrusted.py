"""Settings from strangers; `tests/weights/test_files.py` has their weights."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.cases import Case, Outcome, Verdict, refusal
from faults.corruptions import cut
from faults.watch import watch
from transformer_jax.tasks.registry import load_run
from transformer_jax.trained.load import SHIPPED, shipped_models

ODD: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e308, 10**9, 10**30, -(2**63), float("nan"), float("inf"), "", "x", "1", "\ud800",
    "../../..", "/dev/zero", [], [1], {}, {"a": 1}, [[[[]]]], "x" * 10**5,
)  # fmt: skip


def run(case: Case) -> Outcome:
    """Craft the settings of a model that ships, and open it."""
    rng = case.rng()
    name = rng.choice(shipped_models())
    directory = Path(shutil.copytree(SHIPPED / name, case.directory / "own" / name))
    text = (directory / "config.json").read_text()
    known = {"task": "SetAnomalyTask_cifar100"}, {"task": "../../x"}, {"format": 10**9}, {"x": 1}
    content, done = odd_settings(text, known, rng)
    (directory / "config.json").write_bytes(content)
    seen = watch(lambda: load_run(directory), case.directory)
    fault = f"config.json of {name}: {done}"
    verdict = Verdict.RIGHT if content == text.encode() else Verdict.WRONG  # their digest is another
    return refusal(seen, fault, of_call=True) or Outcome(verdict, fault, "accepted")


def odd_settings(text: str, known: Sequence[dict[str, Any]], rng: random.Random) -> tuple[bytes, str]:
    """JSON in which a setting was changed, or that is damaged, too much, nested too deep; and a description.

    Args:
        text: the good JSON.
        known: changes that a stranger would make.
        rng: chooses.
    """
    settings = json.loads(text)
    if rng.random() < 0.6:
        changes = {rng.choice(list(settings)): rng.choice(ODD)} if rng.random() < 0.7 else rng.choice(known)
        return json.dumps(settings | changes).encode(), json.dumps(changes)[:100]
    depth = rng.choice((900, 10**4, 10**6))
    contents = {
        "empty": b"", "cut": cut(text.encode(), rng), "UTF-16": text.encode("utf-16"), "random": rng.randbytes(999),
        "not UTF-8": text.encode().replace(b"e", b"\xe9", 3), "60 MB of blanks": b" " * 60_000_000, "a list": b"[1]",
        "nested": b"[" * depth + b"]" * depth, "a number of 10 000 digits": b'{"seed": ' + b"9" * 10**4 + b"}",
    }  # fmt: skip
    name = rng.choice(list(contents))
    return contents[name], name
