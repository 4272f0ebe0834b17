"""The anomaly task: what it learns on the digits, its equivariance, its report, its command line."""

import json

import jax
import miniature_cifar100
import numpy as np
import pytest
from commands import call
from compiled_models import drawn
from finished_runs import finished_run

from transformer_jax.data.batch import Batch
from transformer_jax.errors import InputError
from transformer_jax.plots import plot_set_prediction
from transformer_jax.tasks.anomaly import cifar100
from transformer_jax.tasks.anomaly.config import anomaly_data
from transformer_jax.tasks.anomaly.examples import permutation_error
from transformer_jax.tasks.anomaly.tables import digits_table
from transformer_jax.tasks.anomaly.task import AnomalyTrainer, Cifar100Config, DigitsConfig

MODEL = {"model_dim": 12, "num_heads": 3, "num_layers": 2}
SMALL = {"set_size": 5, **MODEL}


def test_the_digits_are_split_per_class_and_completely():
    digits = digits_table()
    everything = np.sort(np.concatenate([digits.train, digits.val, digits.test]))
    np.testing.assert_array_equal(everything, np.arange(1797))
    assert [len(digits.train), len(digits.val), len(digits.test)] == [1295, 143, 359]
    assert digits.features.shape == (1797, 64)
    assert (digits.features.min(), digits.features.max()) == (0, 1)
    for split, smallest in ((digits.train, 126), (digits.val, 14), (digits.test, 35)):
        assert np.bincount(digits.labels[split]).min() >= smallest - 1
    np.testing.assert_array_equal(digits.images.reshape(-1, 64) / 16, digits.features)


@pytest.mark.slow
def test_25_epochs_of_the_command_find_the_odd_digit_in_97_of_100_sets(tmp_path):
    paths = "--checkpoint-dir", tmp_path
    outcome = call("anomaly.py", "--dataset", "digits", "--max-epochs", 25, "--eval-every", 25, *paths)
    assert (outcome.status, outcome.stderr) == (0, "")
    results = json.loads((tmp_path / "SetAnomalyTask_digits" / "results.json").read_text())
    assert results["test_acc"] >= 0.97
    assert results["train_acc"] >= 0.98
    assert f"Test accuracy: {results['test_acc']:.2%} of sets" in outcome.stdout
    assert f"Mistakes: {results['num_mistakes']} of the first 359 examples of the test set" in outcome.stdout


@pytest.mark.slow
def test_the_report_counts_mistakes_and_draws_sets(tmp_path_factory):
    directory = finished_run(tmp_path_factory, "SetAnomalyTask_digits")
    results = json.loads((directory / "results.json").read_text())
    assert 0 < results["train_acc"] < 1
    assert results["permutation_error"] <= 1e-5
    assert (results["dataset"], results["num_mistakes"]) == ("digits", round((1 - results["test_acc"]) * 359))
    for name in ("example_sets", "right_prediction", "wrong_prediction"):
        assert (directory / f"{name}.png").read_bytes().startswith(b"\x89PNG")


SETS = np.random.default_rng(0).random((3, 5, 64), np.float32)


def untrained(**settings) -> AnomalyTrainer:
    """Trainer with random parameters."""
    trainer = AnomalyTrainer(DigitsConfig(**SMALL, **settings))
    trainer.params = drawn(trainer.model, SETS, scale=1.0)["params"]
    return trainer


def test_positions_inside_self_attention_are_not_trained_where_there_is_none():
    config = DigitsConfig(pooling="isab", positions="alibi")  # as that of an earlier run, which opens
    with pytest.raises(InputError, match="positions is alibi; it needs self-attention, but pooling isab has none"):
        config.resolved(7)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["isab", "pma"])
def test_a_set_that_is_pooled_in_a_permutation_permutes_its_prediction(pooling):
    trainer = untrained(pooling=pooling)
    assert permutation_error(trainer.fitted, SETS) <= 1e-5
    modules = trainer.params["encoder"]["layers_0"] if pooling == "isab" else trainer.params["pool"]
    assert {"isab": "inducing", "pma": "seeds"}[pooling] in modules
    other = np.concatenate([SETS[:, :4], 1 - SETS[:, 4:]], 1)  # of which the last element is another
    first, changed = (trainer.forward(each)[:, 0, 0] for each in (SETS, other))
    assert abs(first - changed).min() > 1e-3
    maps = trainer.attention(SETS[0])  # of ISAB the learned points are numbered, not cut to the images
    assert len(maps.key_labels["encoder"]) == np.shape(maps.maps["encoder"][0])[-1] == (16 if pooling == "isab" else 5)
    assert plot_set_prediction(SETS[0].reshape(5, 8, 8), np.full(5, 0.2), 0, maps.maps["encoder"]).axes


@pytest.mark.slow
def test_the_permutation_error_sees_a_model_that_knows_positions():
    assert permutation_error(untrained(positions="sinusoidal").fitted, SETS) > 1e-2


@pytest.mark.slow
def test_the_softmax_is_over_the_set():
    trainer, positions = untrained(), np.array([4, 0, 2])
    logits = trainer.forward(SETS)
    assert logits.shape == (3, 5, 1)
    loss = jax.jit(lambda batch: trainer.loss_function(trainer.params, batch, None, train=False)["loss"][0])
    expected = -jax.nn.log_softmax(logits[..., 0])[np.arange(3), positions]
    np.testing.assert_allclose(loss(Batch(SETS, positions, np.ones(3, bool))), expected, atol=1e-5)


def pixels(images) -> np.ndarray:
    """Stand-in for the network, which has its own test."""
    return np.asarray(images).reshape(len(images), -1)[:, ::6]


@pytest.mark.slow
def test_cifar100_from_its_files_to_its_examples(tmp_path, monkeypatch):
    """Seven classes: from files on disk through features and split to a set of the test data."""
    monkeypatch.setattr(cifar100, "resnet34", lambda _: pixels)
    monkeypatch.setattr(cifar100, "fetch_weights", lambda _: None)
    miniature_cifar100.write_miniature(tmp_path, num_classes=7, train_per_class=23, test_per_class=5)
    miniature_cifar100.accept(monkeypatch, tmp_path)
    config = Cifar100Config(data_dir=tmp_path, resolution=32, set_size=3, **MODEL)
    data = anomaly_data(config)
    assert data.constants.shape == (7 * 28, 512)
    assert [len(part) for part in data.table[3:]] == [7 * 21, 7 * 2, 7 * 5]
    (example,) = AnomalyTrainer(config).test_examples([4])
    assert example.images.shape == (3, 32, 32, 3)
    np.testing.assert_allclose(example.inputs[0], pixels(example.images / 255), atol=1e-6)
    assert plot_set_prediction(example.images, np.full(3, 1 / 3), 0, [np.full((3, 3, 3), 1 / 3)]).axes


def test_help_shows_the_chosen_data_sets_defaults():
    digits, cifar100 = (call("anomaly.py", "--dataset", name, "--help").stdout for name in ("digits", "cifar100"))
    assert "--resolution" in cifar100
    assert "--resolution" not in digits
    assert "(default: 60)" in digits
    assert "(default: 100)" in cifar100
