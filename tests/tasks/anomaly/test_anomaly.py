"""The anomaly task: whole runs on the digits, its equivariance, its pictures, its command line."""

import dataclasses
import json
from pathlib import Path

import jax
import miniature_cifar100
import numpy as np
import pytest
from commands import call
from made_once import made_once

from transformer_jax.data.batch import Batch
from transformer_jax.tasks.anomaly import cifar100
from transformer_jax.tasks.anomaly.config import anomaly_data, default_config
from transformer_jax.tasks.anomaly.examples import permutation_error
from transformer_jax.tasks.anomaly.tables import digits_table
from transformer_jax.tasks.anomaly.task import AnomalyTrainer, Cifar100Config, DigitsConfig, train_anomaly

MODEL = {"model_dim": 12, "num_heads": 3, "num_layers": 2}
SMALL = DigitsConfig(max_epochs=2, warmup=5, set_size=5, **MODEL)


@pytest.fixture(scope="module")
def digits():
    return digits_table()


def test_the_digits_are_split_per_class_and_completely(digits):
    everything = np.sort(np.concatenate([digits.train, digits.val, digits.test]))
    np.testing.assert_array_equal(everything, np.arange(1797))
    assert [len(digits.train), len(digits.val), len(digits.test)] == [1295, 143, 359]
    assert digits.features.shape == (1797, 64)
    assert (digits.features.min(), digits.features.max()) == (0, 1)
    for split, smallest in ((digits.train, 126), (digits.val, 14), (digits.test, 35)):
        assert np.bincount(digits.labels[split]).min() >= smallest - 1
    np.testing.assert_array_equal(digits.images.reshape(-1, 64) / 16, digits.features)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> tuple[Path, str]:
    """The command on the digits, with 25 of its 60 epochs: its run directory and what it printed."""

    def train(parent: Path) -> None:
        paths = "--checkpoint-dir", parent, "--data-dir", parent / "data"
        outcome = call("anomaly.py", "--dataset", "digits", "--max-epochs", 25, "--eval-every", 25, *paths)
        assert (outcome.status, outcome.stderr) == (0, "")
        (parent / "printed").write_text(outcome.stdout)

    parent = made_once(tmp_path_factory, "digits", train)
    return parent / "SetAnomalyTask_digits", (parent / "printed").read_text()


@pytest.mark.slow
def test_25_epochs_find_the_odd_digit_in_97_of_100_sets(whole_run):
    directory, printed = whole_run
    results = json.loads((directory / "results.json").read_text())
    assert results["test_acc"] >= 0.97
    assert results["train_acc"] >= 0.98
    assert results["dataset"] == "digits"
    assert results["permutation_error"] <= 1e-5
    assert results["num_mistakes"] == round((1 - results["test_acc"]) * 359)
    assert f"Test accuracy: {results['test_acc']:.2%}" in printed
    assert f"Mistakes: {results['num_mistakes']} of the first 359 examples of the test set" in printed
    assert (directory / "right_prediction.png").read_bytes().startswith(b"\x89PNG")


@pytest.fixture(scope="module")
def data(digits):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(DigitsConfig, "table", lambda config: digits)
        return anomaly_data(SMALL)


@pytest.fixture(scope="module")
def untrained(digits) -> AnomalyTrainer:
    return with_params(AnomalyTrainer(SMALL, constants=digits.features))


def with_params(trainer: AnomalyTrainer) -> AnomalyTrainer:
    """Give it untrained parameters."""
    inputs = np.zeros((1, trainer.config.set_size), np.int32)
    trainer.params = trainer.initial_params(jax.random.key(0), inputs, trainer.constants)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["isab", "pma"])
def test_a_set_that_is_pooled_in_a_permutation_permutes_its_prediction(tmp_path, pooling):
    config = dataclasses.replace(SMALL, pooling=pooling, max_epochs=1, checkpoint_dir=tmp_path)
    trainer, results = train_anomaly(config)
    assert results["permutation_error"] <= 1e-5
    modules = trainer.params["encoder"]["layers_0"] if pooling == "isab" else trainer.params["pool"]
    assert {"isab": "inducing", "pma": "seeds"}[pooling] in modules
    sets = np.random.default_rng(0).random((3, 5, 64), np.float32)
    other = np.concatenate([sets[:, :4], 1 - sets[:, 4:]], 1)  # of which the last element is another
    first, changed = (trainer.forward(each)[:, 0, 0] for each in (sets, other))
    assert abs(first - changed).min() > 1e-3
    assert (tmp_path / "SetAnomalyTask_digits" / "right_prediction.png").exists()
    maps = trainer.attention(sets[0])  # of ISAB the learned points are numbered, not cut to the images
    assert len(maps.key_labels["encoder"]) == np.shape(maps.maps["encoder"][0])[-1] == (16 if pooling == "isab" else 5)


@pytest.mark.slow
def test_the_permutation_error_sees_a_model_that_knows_positions(digits, data):
    config = dataclasses.replace(SMALL, positions="sinusoidal")
    trainer = with_params(AnomalyTrainer(config, constants=digits.features))
    inputs, _ = next(iter(data.test_loader))
    assert permutation_error(trainer, inputs) > 1e-2


@pytest.mark.slow
def test_the_softmax_is_over_the_set(data, untrained):
    indices, positions = next(iter(data.test_loader))
    logits = untrained.forward(indices)
    assert logits.shape == (64, 5, 1)
    batch = Batch(untrained.prepare(indices, untrained.constants), positions, np.ones(64, bool))
    elements = untrained.loss_function(untrained.params, batch, None, train=False)
    expected = -jax.nn.log_softmax(logits[..., 0])[np.arange(64), positions]
    np.testing.assert_allclose(elements["loss"][0], expected, atol=1e-6)
    assert expected.mean() > 1  # guessing among 5 images costs log 5 = 1.6; a softmax over one class would cost 0


def pixels(images) -> np.ndarray:
    """In the network's place, whose numbers have a test of their own."""
    return images.reshape(len(images), -1)[:, ::6].astype(np.float32) / 255


@pytest.mark.slow
def test_cifar100_from_its_files_to_the_report(tmp_path, monkeypatch):
    """Seven classes in the format on disk, through the features, the split, the training and the pictures."""
    monkeypatch.setattr(cifar100, "resnet34_features", lambda *_: pixels)
    monkeypatch.setattr(cifar100, "fetch_weights", lambda _: None)
    data = tmp_path / "data"
    miniature_cifar100.write_miniature(data, num_classes=7, train_per_class=23, test_per_class=5)
    miniature_cifar100.accept(monkeypatch, data)
    assert isinstance(default_config(data), Cifar100Config)  # auto takes it, since it lies there
    small = {"resolution": 16, "set_size": 3, "batch_size": 23, "max_epochs": 1, "warmup": 3, **MODEL}
    config = Cifar100Config(data_dir=data, checkpoint_dir=tmp_path, **small)
    trainer, results = train_anomaly(config)
    assert (results["steps"], results["dataset"]) == (7 * 21 // 23, "cifar100")
    assert results["permutation_error"] <= 1e-5
    assert trainer.constants.shape == (7 * 28, 512)
    assert results["num_mistakes"] == round((1 - results["test_acc"]) * 35) > 0
    directory = tmp_path / "SetAnomalyTask_cifar100"
    assert (directory / "example_sets.png").read_bytes().startswith(b"\x89PNG")
    assert (directory / "wrong_prediction.png").exists()


def test_auto_takes_the_digits_where_no_cifar100_lies_and_says_how_to_get_it(tmp_path, capsys):
    assert isinstance(default_config(tmp_path), DigitsConfig)
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert "--dataset cifar100" in printed


def test_help_shows_the_chosen_data_sets_defaults():
    digits, cifar100 = (call("anomaly.py", "--dataset", name, "--help").stdout for name in ("digits", "cifar100"))
    assert "--resolution" in cifar100
    assert "--resolution" not in digits
    assert "(default: 60)" in digits
    assert "(default: 100)" in cifar100
