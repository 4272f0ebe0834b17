"""`--pretrained`: a trained model is evaluated as after its training, and is not changed."""

import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import call
from finished_runs import REVERSE, copied_run

from transformer_jax import load_run, train_reverse
from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.task import DigitsConfig, train_anomaly
from transformer_jax.tasks.translation.task import train_translation

pytestmark = pytest.mark.slow

SIZES = ("seq_len", "num_categories", "train_size", "val_size", "test_size", "batch_size")
DATA = {name: REVERSE[name] for name in SIZES}
MODEL = {name: REVERSE[name] for name in ("model_dim", "num_heads", "num_layers", "input_dropout_prob")}


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".lock"))
    return {str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def copied(tmp_path_factory, tmp_path) -> Path:
    """A run that tests may change."""
    return copied_run(tmp_path_factory, "ReverseTask", tmp_path)


def test_a_run_reaches_its_own_accuracies_again_beside_it_and_stays_as_it_was(copied):
    before = contents(copied)
    trainer, results = train_reverse(**DATA, pretrained=str(copied), checkpoint_dir=copied.parent)
    assert contents(copied) == before
    directory = copied.parent / "ReverseTask_pretrained"
    assert json.loads((directory / "results.json").read_text()) == results
    of_training = json.loads((copied / "results.json").read_text())
    for name in ("val_acc", "test_acc"):
        assert results[name] == of_training[name]
    for name in ("val", "test"):
        assert results[name] == pytest.approx(of_training[name], abs=1e-6)
    assert (results["steps"], results["train_seconds"]) == (0, 0)
    assert results.keys() == of_training.keys()
    assert (directory / "attention_maps.png").read_bytes() == (copied / "attention_maps.png").read_bytes()
    assert not (directory / "checkpoints").exists()
    # The model is the run's, whatever the settings say; the rest is as it was asked for.
    settings = json.loads((directory / "config.json").read_text())
    assert settings.items() >= MODEL.items()
    assert (settings["pretrained"], settings["max_epochs"]) == (str(copied), 10)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, load_run(copied).params)


@pytest.mark.parametrize(
    ("arguments", "task", "least", "pictures"),
    [
        (["reverse.py"], "ReverseTask", {"val_acc": 1.0, "test_acc": 1.0}, ["attention_maps"]),
        (
            ["anomaly.py", "--dataset", "digits"],
            "SetAnomalyTask_digits",
            {"train_acc": 0.99, "test_acc": 0.99},
            ["example_sets", "right_prediction", "wrong_prediction"],
        ),
        (
            ["translate.py", "--train-size", 71, "--val-size", 71, "--test-size", 101],
            "TranslationTask",
            {"test_acc": 0.999, "exact_match": 0.99},
            ["cross_attention"],
        ),
    ],
    ids=["reverse", "digits", "dates"],
)
def test_each_experiment_shows_its_numbers_and_pictures_with_a_model_that_ships(
    request, tmp_path, arguments, task, least, pictures
):
    name = request.node.callspec.id
    outcome = call(*arguments, "--pretrained", name, "--checkpoint-dir", tmp_path)
    assert (outcome.status, outcome.stderr) == (0, "")
    directory = tmp_path / f"{task}_pretrained"
    assert outcome.stdout.startswith(f"No training: evaluating {name}, results in {directory}\n")
    results = json.loads((directory / "results.json").read_text())
    counted = {"reverse": "numbers", "digits": "sets", "dates": "bytes"}[name]
    assert f"Test accuracy: {results['test_acc']:.2%} of {counted}\n" in outcome.stdout
    assert results["steps"] == 0
    assert "chrf" not in results  # a date is right or wrong
    for metric, value in least.items():
        assert results[metric] >= value, metric
    assert sorted(path.stem for path in directory.glob("*.png")) == pictures


def test_a_model_that_does_not_fit_is_refused_and_nothing_is_made(copied, tmp_path):
    runs = {"checkpoint_dir": tmp_path / "runs"}
    run = {**runs, **DATA, "pretrained": str(copied)}
    in_training = "as in the training of .*ReverseTask$"
    for train, message in (
        (lambda: train_reverse(**run | {"seq_len": 11}), f"seq_len is 11; it must be 5, {in_training}"),
        (
            lambda: train_reverse(pretrained="reverse", num_heads=2, **runs),
            "num_heads is 2, which has no effect: pretrained is reverse, which determines the model",
        ),
        (
            lambda: train_translation(pretrained="dates", data=Path("pairs.tsv"), **runs),
            "data is pairs.tsv; it must be None, since dates was trained on dates",
        ),
        (
            lambda: train_translation(pretrained="reverse-jax", **runs),
            r"pretrained is reverse-jax; it must be a .*\(dates, digits, reverse\)$",
        ),
        (lambda: train_reverse(**run | {"pretrained": "digits"}), "digits, a model of the task SetAnomalyTask_digits;"),
    ):
        with pytest.raises(InputError, match=message):
            train()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "empty", "directory", "a" * 300, "a/" * 2500, "a\0b", "\udcff"])
def test_what_is_no_model_is_refused_at_once_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("empty").touch()
    Path("directory").mkdir()
    with pytest.raises(InputError, match="pretrained is|empty is empty|holds no run") as caught:
        train_reverse(pretrained=name)
    assert "\n" not in str(caught.value)
    assert not Path("checkpoints").exists()


def test_images_wait_until_the_model_is_found(monkeypatch):
    monkeypatch.setattr(DigitsConfig, "table", lambda config: pytest.fail("the images were loaded"))
    with pytest.raises(InputError, match="pretrained is nothing"):
        train_anomaly(DigitsConfig(pretrained="nothing"))
