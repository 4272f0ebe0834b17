"""Finished trainings, each made once per test session: read them in place, copy them to change them."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import start
from made_once import made_once

from transformer_jax import DigitsConfig, train_anomaly, train_language_model, train_reverse, train_translation

REVERSE = {
    "max_epochs": 2, "train_size": 71, "val_size": 37, "test_size": 29, "batch_size": 7, "warmup": 3, "eval_every": 1,
    "seq_len": 5, "num_categories": 7, "model_dim": 12, "num_heads": 3, "num_layers": 2, "input_dropout_prob": 0.05,
}  # fmt: skip
ANOMALY = {
    "max_epochs": 2, "batch_size": 31, "warmup": 3, "set_size": 5, "model_dim": 12, "num_heads": 3, "num_layers": 1,
}  # fmt: skip
TRANSLATION = {
    "max_epochs": 2, "batch_size": 7, "warmup": 3, "max_bytes": 17, "model_dim": 12, "num_heads": 3, "num_layers": 1,
    "dim_feedforward": 13,
}  # fmt: skip
LANGUAGE_MODEL = {
    "max_epochs": 2, "batch_size": 7, "warmup": 3, "seq_len": 11, "model_dim": 12, "num_heads": 3, "num_layers": 1,
    "dim_feedforward": 13,
}  # fmt: skip


def _translation(parent: Path) -> None:
    (parent / "pairs.tsv").write_text("".join(f"{n:03}\t{n % 7}{n % 5}\n" for n in range(140)), encoding="utf-8")
    train_translation(data=parent / "pairs.tsv", checkpoint_dir=parent, **TRANSLATION)


def _language_model(parent: Path) -> None:
    (parent / "text.txt").write_text("a bee sees a sea, " * 97, encoding="utf-8")
    train_language_model(data=parent / "text.txt", checkpoint_dir=parent, **LANGUAGE_MODEL)


TRAININGS: dict[str, Callable[[Path], object]] = {
    "ReverseTask": lambda parent: train_reverse(checkpoint_dir=parent, **REVERSE),
    "SetAnomalyTask_digits": lambda parent: train_anomaly(DigitsConfig(checkpoint_dir=parent, **ANOMALY)),
    "TranslationTask": _translation,
    "LanguageModelTask": _language_model,
}


def finished_run(factory: pytest.TempPathFactory, name: str) -> Path:
    """Return the directory of a finished run of two short epochs; it must not be changed.

    Args:
        factory: the fixture `tmp_path_factory`.
        name: name of the run, a key of `TRAININGS`.
    """
    return made_once(factory, f"tiny_{name}", TRAININGS[name]) / name


def copied_run(factory: pytest.TempPathFactory, name: str, parent: Path) -> Path:
    """Copy the finished run to a directory under `parent`, which may be changed."""
    return Path(shutil.copytree(finished_run(factory, name), parent / name))


def reverse_run(factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the run of `make reverse` at its defaults, and its output in the file `printed`."""

    def train(parent: Path) -> None:
        process = start("reverse.py", "--checkpoint-dir", parent)
        assert (process.returncode, process.stderr) == (0, "")  # no progress bar where there is no terminal
        (parent / "printed").write_text(process.stdout)

    return made_once(factory, "reverse", train)
