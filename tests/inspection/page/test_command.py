"""`python -m transformer_jax.inspection`: what it prints and writes, and its errors in one line."""

import argparse
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tutorial_models import TorchPredictor

from transformer_jax import InputError
from transformer_jax.inspection.__main__ import carry_out, read_command
from transformer_jax.tasks.registry import find_trainer

NUMBERS = ["3", "1", "4", "1", "5", "9", "2", "6", "5", "3", "5", "8", "9", "7", "9", "3"]


def command(run: str, words: list[str], output: Path) -> argparse.Namespace:
    return read_command([run, *words, "--output", str(output)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: RUN"),
        (["reverse", "--output", "."], "output is .; it must be a file"),
    ],
)
def test_a_command_that_cannot_work_is_an_error(arguments, message):
    with pytest.raises(InputError, match=message):
        read_command(arguments)


@pytest.mark.parametrize(
    ("run", "words", "message"),
    [
        ("nothing", [], "run is nothing; it must be a run's directory, a model that ships .dates, digits, reverse."),
        ("reverse", ["3"] * 5001, "5001"),
        (".", [], "config.json"),
    ],
)
def test_what_is_not_there_is_an_error_and_nothing_is_written(tmp_path, run, words, message):
    with pytest.raises((InputError, OSError), match=message):
        carry_out(command(run, words, tmp_path / "page.html"))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_numbers_are_printed_with_the_probability_of_each_and_the_page_is_written(tmp_path, capsys):
    carry_out(command("reverse", NUMBERS, tmp_path / "page.html"))
    title, answer, parts, written = capsys.readouterr().out.splitlines()
    assert title == " ".join(NUMBERS)
    assert answer.startswith(f"  → {' '.join(reversed(NUMBERS))}  0.98")
    assert len(re.findall(r"\d (\d\.\d{4})", parts)) == 16
    assert written == f"Written: {tmp_path / 'page.html'}"
    assert (tmp_path / "page.html").read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(("num_features", "num_classes"), [(7, 7), (64, 1), (512, 1)])
def test_a_file_of_the_tutorials_has_its_tasks_trainer(tmp_path, num_features, num_classes):
    settings = {"input_dim": num_features, "num_classes": num_classes, "model_dim": 12, "num_heads": 2, "num_layers": 1}
    module = TorchPredictor(**settings, dropout=0.0, input_dropout=0.0)
    torch.save(module.checkpoint(), tmp_path / "lightning.ckpt")
    trainer = find_trainer(str(tmp_path / "lightning.ckpt"))
    inputs = np.eye(num_features, dtype=np.float32)[None, :5]  # one-hot numbers, or features
    expected = module(torch.tensor(inputs), positions=num_classes > 1).detach()
    given = np.arange(5)[None] if num_classes > 1 else inputs
    (example,) = trainer.examples(given)
    np.testing.assert_allclose(trainer.apply(trainer.params, example.inputs), expected, rtol=0, atol=1e-5)
    assert {64: "SetAnomalyTask_digits", 512: "SetAnomalyTask_cifar100"}.get(
        num_features, "ReverseTask"
    ) == trainer.name
