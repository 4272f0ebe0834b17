import os
import signal

import jax
import numpy as np
import pytest

from transformer_jax import load_run
from transformer_jax.errors import InputError
from transformer_jax.fit.signals import Interrupted
from transformer_jax.tasks import DictionaryTrainer, train_dictionary

SETTINGS = {"model_dim": 5, "num_features": 11, "k": 2, "batch_size": 31, "held_out": 37, "warmup": 3, "max_epochs": 3}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """File of vectors that are sums of at most three of eleven directions."""
    rng = np.random.default_rng(0)
    features = rng.uniform(size=(410, 11)) * (rng.uniform(size=(410, 11)) < 0.15)
    path = tmp_path_factory.mktemp("rows") / "rows.npy"
    np.save(path, (features @ rng.normal(size=(11, 5)) + 3).astype(np.float32))
    return path


def train(rows, parent, **settings):
    return train_dictionary(**({"data": rows, "checkpoint_dir": parent, "eval_every": 1} | SETTINGS | settings))


def assert_metrics(trainer, rows, metrics, width):
    output, features = trainer.predict(np.load(rows)[-37:])
    target = np.load(rows)[-37:, -width:]
    explained = 1 - np.square(target - output).sum() / np.square(target - target.mean(0)).sum()
    np.testing.assert_allclose(metrics["explained_variance"], explained, atol=1e-4)
    np.testing.assert_allclose(metrics["active"], (features > 0).sum(-1).mean(), rtol=1e-5)
    assert metrics["dead"] == (~(features > 0).any(0)).sum()
    return np.square(target - output).sum(-1).mean()


@pytest.mark.slow
def test_a_transcoder_that_was_interrupted_ends_as_if_it_had_not_been_and_opens_again(rows, tmp_path, monkeypatch):
    sizes = {"model_dim": 3, "output_dim": 2}  # it learns the last columns from the first
    whole, results = train(rows, tmp_path / "whole", **sizes)
    of_evaluation = DictionaryTrainer.dataset_metrics

    def signalled(self, params, loader):
        os.kill(os.getpid(), signal.SIGTERM)
        return of_evaluation(self, params, loader)

    monkeypatch.setattr(DictionaryTrainer, "dataset_metrics", signalled)
    with pytest.raises(Interrupted):
        train(rows, tmp_path, **sizes)
    monkeypatch.undo()
    again, same = train(rows, tmp_path, **sizes)
    jax.tree.map(np.testing.assert_array_equal, again.params, whole.params)
    assert same["test"] == results["test"]
    opened = load_run(tmp_path / "DictionaryTask")
    assert opened.test()["test"] == pytest.approx(results["test"], rel=1e-6)
    loss = assert_metrics(opened, rows, results["test"], 2)
    assert results["test"]["loss"] == pytest.approx(loss, rel=1e-4)
    found = opened.predict(np.load(rows)[-37:])
    assert found.output.shape == (37, 2)
    np.testing.assert_allclose(opened.dictionary.encode(np.load(rows)[-37:, :3]), found.features, atol=1e-6)


@pytest.mark.slow
def test_training_explains_variance_and_gates_count_in_the_loss(rows, tmp_path):
    trainer, results = train(rows, tmp_path, k=None, sparsity=0.1, max_epochs=60, lr=0.01, eval_every=30)
    error = assert_metrics(trainer, rows, results["test"], 5)
    assert results["test"]["explained_variance"] > 0.8
    x = np.load(rows)[-37:]
    of_gates = trainer.model.apply(trainer.variables, x, target=x, sparsity=0.1, method="gate_loss").mean()
    assert results["test"]["loss"] == pytest.approx(float(error + of_gates), rel=1e-4)


def test_bad_settings_are_named(rows, tmp_path):
    for settings, message in (
        ({"k": 12}, "k is 12; it may be at most num_features, 11"),
        ({"data": None}, "data is None; it must be a file of rows"),
        ({"data": tmp_path / "none.npy"}, r"none\.npy can't be read: No such file"),
        ({"output_dim": 2}, r"rows\.npy with float32 \(410, 5\); it must be an array of floats \[N, 7\]"),
        ({"held_out": 205}, "held_out is 205; it must be less than half of the 410 rows"),
    ):
        with pytest.raises(InputError, match=message):
            train(rows, tmp_path, **settings)
