"""Loading a run back, without a word about its settings."""

import json
import subprocess
import sys

import numpy as np
import pytest

from transformer_jax import ReverseDataset, load_run, train_reverse
from transformer_jax.tasks.anomaly.task import DigitsConfig, train_anomaly


@pytest.fixture(scope="module")
def reverse_run(tmp_path_factory):
    parent = tmp_path_factory.mktemp("runs")
    return train_reverse(
        max_epochs=3, train_size=1280, val_size=70, test_size=70, seq_len=5, num_categories=7,
        model_dim=12, num_heads=3, num_layers=2, lr=3e-3, warmup=3, input_dropout_prob=0.05, checkpoint_dir=parent,
    )[0]  # fmt: skip


def test_a_run_comes_back_with_its_model_its_parameters_and_its_settings(reverse_run):
    loaded = load_run(reverse_run.run.path)
    assert loaded.config == reverse_run.config
    assert loaded.model == reverse_run.model
    inputs = ReverseDataset(7, 5, 20, seed=3).inputs
    np.testing.assert_array_equal(loaded.predict(inputs), reverse_run.predict(inputs))
    np.testing.assert_array_equal(loaded.forward((inputs, inputs)), reverse_run.forward((inputs, inputs)))


def test_it_comes_back_in_another_process_from_another_place(reverse_run, tmp_path):
    moved = tmp_path / "elsewhere"
    subprocess.run(["cp", "-r", str(reverse_run.run.path), str(moved)], check=True)
    code = (
        "import sys, json, numpy as np; from transformer_jax import load_run; "
        "print(json.dumps(load_run('elsewhere').predict(np.arange(10).reshape(2, 5) % 7).tolist()))"
    )
    process = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(process.stdout) == reverse_run.predict(np.arange(10).reshape(2, 5) % 7).tolist()


def test_an_anomaly_run_answers_for_features_without_its_table(tmp_path):
    trainer, _ = train_anomaly(DigitsConfig(max_epochs=1, model_dim=16, warmup=5, checkpoint_dir=tmp_path))
    sets = np.random.default_rng(0).uniform(size=(3, 7, 64)).astype(np.float32)
    probabilities = load_run(trainer.run.path).predict(sets)
    assert probabilities.shape == (3, 7)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(probabilities, trainer.predict(sets), atol=1e-6)


def test_what_is_no_run_is_an_error_and_nothing_is_made(tmp_path):
    with pytest.raises(ValueError, match="holds no run"):
        load_run(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    (tmp_path / "config.json").write_text('{"task": "Chess"}')
    with pytest.raises(ValueError, match="task Chess"):
        load_run(tmp_path)
    (tmp_path / "config.json").write_text('{"task": "ReverseTask", "heads": 3}')
    with pytest.raises(ValueError, match="unknown settings: heads"):
        load_run(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is no run's"):
        load_run(tmp_path)
    (tmp_path / "config.json").write_text('{"task": "ReverseTask"}')
    with pytest.raises(ValueError, match="no checkpoint"):
        load_run(tmp_path)
