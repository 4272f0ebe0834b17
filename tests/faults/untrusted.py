"""Files from strangers: weights, features, settings and sentence pairs that were made to do harm."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from faults import crafted_config, crafted_pairs, crafted_weights
from faults.cases import Case, Outcome, Verdict
from faults.commands_seen import failure_of, refusal, refusal_of_call
from faults.comparing import holds_nan, same
from faults.in_process import command
from faults.watch import Seen, watch
from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.tasks.anomaly.feature_files import read_features
from transformer_jax.tasks.registry import load_run
from transformer_jax.tasks.translation.pair_files import load_pairs
from transformer_jax.trained.published import load_pretrained
from transformer_jax.trained.shipped import SHIPPED
from transformer_jax.weights.pytorch import params_from_torch

USES = ("params.msgpack", "--pretrained FILE", "params_from_torch", "features", "config.json", "pairs")


def run(case: Case) -> Outcome:
    """Craft one file, and use it."""
    use = case.rng().choice(USES)
    return {
        "params.msgpack": _shipped_params,
        "--pretrained FILE": _tutorial_file,
        "params_from_torch": _torch_file,
        "features": _features,
        "config.json": _config,
        "pairs": _pairs,
    }[use](case)


def _accepted(fault: str, *, is_right: bool) -> Outcome:
    return Outcome(Verdict.RIGHT if is_right else Verdict.WRONG, fault, "" if is_right else "accepted")


def _of_call(seen: Seen, fault: str, size: int, is_right: Callable[[Any], bool]) -> Outcome:
    """The verdict on a call that read a file; `is_right` judges what it returned."""
    refused = failure_of(seen, fault, size) or refusal_of_call(seen, fault)
    return refused or _accepted(fault, is_right=is_right(seen.value))


def _of_command(seen: Seen, fault: str, size: int, *, is_right: bool = False) -> Outcome:
    """The verdict on a command that read a file; `is_right` if it may be accepted."""
    return failure_of(seen, fault, size) or refusal(seen, fault) or _accepted(fault, is_right=is_right)


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


def _features(case: Case) -> Outcome:
    rng = case.rng()
    names = [f"{split}_set_features.npz" for split in ("train", "test")]
    for name in names:
        np.savez(case.directory / name, feats=np.zeros((3, 512), np.float32))
    file = case.directory / rng.choice(names)
    made = crafted_weights.craft(file, rng, file.read_bytes())
    size, fault = file.stat().st_size, f"features: {made}"
    if rng.random() < 0.5:
        seen = watch(lambda: read_features(file), case.directory)
        return _of_call(seen, fault, size, lambda found: found[0].shape[1:] == (512,) and not holds_nan(found[0]))
    line = "--dataset=cifar100", f"--features-dir={case.directory}", f"--data-dir={case.directory / 'data'}"
    (case.directory / "data").write_text("a file, so that nothing is downloaded")
    seen = watch(command("anomaly.py", *line, f"--checkpoint-dir={case.directory / 'runs'}"), case.directory)
    return _of_command(seen, fault, size)


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


def _pairs(case: Case) -> Outcome:
    rng = case.rng()
    file = case.directory / "pairs.tsv"
    made, num_pairs = crafted_pairs.craft(file, rng)
    fault = f"pairs: {made}"
    size = 0 if not file.is_file() else file.stat().st_size
    if rng.random() < 0.5:
        seen = watch(lambda: load_pairs(file), case.directory)
        return _of_call(seen, fault, size, lambda f: sum(map(len, (f.train, f.val, f.test))) == num_pairs)
    sizes = "--model-dim=8", "--num-heads=1", "--num-layers=1", "--dim-feedforward=8", "--batch-size=1", "--warmup=0"
    line = f"--data={file}", f"--checkpoint-dir={case.directory / 'runs'}", *sizes
    seen = watch(command("translate.py", *line, two_steps=True), case.directory, case.material / "compiled")
    return _of_command(seen, fault, size, is_right=num_pairs is not None)
