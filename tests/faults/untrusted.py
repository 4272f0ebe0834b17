"""Files from strangers: weights and settings that were made to do harm."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import crafted_config, crafted_weights
from faults.cases import Case, Outcome, Verdict
from faults.commands_seen import failure_of, refusal, refusal_of_call
from faults.comparing import holds_nan, same
from faults.in_process import command
from faults.watch import Seen, watch
from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.tasks.registry import load_run
from transformer_jax.trained.load import SHIPPED
from transformer_jax.trained.published import load_pretrained
from transformer_jax.weights.pytorch import params_from_torch


def run(case: Case) -> Outcome:
    """Craft one file, and use it."""
    return case.rng().choice((_shipped_params, _tutorial_file, _torch_file, _config))(case)


def _accepted(fault: str, *, is_right: bool) -> Outcome:
    return Outcome(Verdict.RIGHT if is_right else Verdict.WRONG, fault, "" if is_right else "accepted")


def _of_call(seen: Seen, fault: str, size: int, is_right: Callable[[Any], bool]) -> Outcome:
    """The verdict on a call that read a file; `is_right` judges what it returned."""
    refused = failure_of(seen, fault, size) or refusal_of_call(seen, fault)
    return refused or _accepted(fault, is_right=is_right(seen.value))


def _of_command(seen: Seen, fault: str, size: int) -> Outcome:
    """The verdict on a command that read a file, which it must refuse."""
    return failure_of(seen, fault, size) or refusal(seen, fault) or _accepted(fault, is_right=False)


def _shipped_params(case: Case) -> Outcome:
    directory = Path(shutil.copytree(SHIPPED / "reverse", case.directory / "reverse"))
    file = directory / "params.msgpack"
    made = crafted_weights.craft(file, case.rng(), file.read_bytes())
    seen = watch(lambda: load_run(directory), case.directory)
    fault = f"params.msgpack of a run: {made}"
    expected = load_run(SHIPPED / "reverse").params
    return _of_call(seen, fault, file.stat().st_size, lambda found: same(found.params, expected))


def _tutorial_file(case: Case) -> Outcome:
    file = case.directory / "model.ckpt"
    made = crafted_weights.craft(file, case.rng(), (SHIPPED / "reverse" / "params.msgpack").read_bytes())
    size, fault = file.stat().st_size, f"--pretrained FILE: {made}"
    if case.rng().random() < 0.5:
        seen = watch(lambda: load_pretrained(file, num_heads=1), case.directory)
        return _of_call(seen, fault, size, lambda found: not holds_nan(found[1]))
    line = (
        f"--pretrained={file}",
        f"--checkpoint-dir={case.directory / 'evaluation'}",
        "--test-size=64",
        "--val-size=64",
    )
    seen = watch(command("reverse.py", *line), case.directory, case.material / "compiled")
    return _of_command(seen, fault, size)


def _torch_file(case: Case) -> Outcome:
    file = case.directory / "model.pt"
    made = crafted_weights.craft(file, case.rng(), b"")
    seen = watch(lambda: params_from_torch(MultiheadAttention(8, 2), file), case.directory)
    fault = f"params_from_torch: {made}"
    return _of_call(seen, fault, file.stat().st_size, lambda found: not holds_nan(found))


def _config(case: Case) -> Outcome:
    rng = case.rng()
    name = rng.choice(("reverse", "digits", "dates"))
    directory = Path(shutil.copytree(SHIPPED / name, case.directory / "own" / name))
    cache = case.directory / "programs"
    cache.mkdir()
    made = crafted_config.craft(directory / "config.json", rng, cache)
    fault = f"config.json of {name}: {made}"
    seen = watch(lambda: load_run(directory), case.directory, forbidden=cache)
    right = load_run(SHIPPED / name)
    return _of_call(seen, fault, 2**20, lambda f: f.model == right.model and same(f.params, right.params))
