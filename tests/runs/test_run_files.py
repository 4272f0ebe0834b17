"""What a training leaves behind, under a name of its own: results with their origin, the mark of a divergence."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from made_once import made_once

from transformer_jax import load_run, train_reverse
from transformer_jax.runs.listing import read_run
from transformer_jax.runs.provenance import versions
from transformer_jax.runs.settings import read_settings

SIZES = {"seq_len": 5, "num_categories": 7, "train_size": 320, "val_size": 70, "test_size": 110}
SETTINGS = {**SIZES, "batch_size": 32, "max_epochs": 3, "warmup": 3, "eval_every": 1}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parent(tmp_path_factory) -> Path:
    """A directory with a run and an evaluation of it."""

    def train(directory: Path) -> None:
        train_reverse(**SETTINGS, checkpoint_dir=directory, name="third try")
        train_reverse(**SIZES, checkpoint_dir=directory, name="third try", pretrained=str(directory / "third try"))

    return made_once(tmp_path_factory, "named", train)


def results(directory: Path) -> dict:
    return json.loads((directory / "results.json").read_text())


def test_the_run_and_its_evaluation_lie_under_the_name_and_the_task_is_recorded(parent):
    assert sorted(path.name for path in parent.iterdir() if path.is_dir()) == ["third try", "third try_pretrained"]
    for directory in parent.glob("third*"):
        assert read_settings(directory)[0] == "ReverseTask"
        assert results(directory)["test"] == pytest.approx(results(parent / "third try")["test"], abs=1e-6)


def test_a_named_run_is_opened_without_taking_the_name_over(parent):
    run = load_run(parent / "third try")
    assert (run.config.name, run.config.seq_len) == (None, 5)
    assert run.predict(np.zeros((2, 5), int)).shape == (2, 5)


def test_results_hold_every_metric_settings_versions_and_commit(parent):
    found = results(parent / "third try")
    assert found["val"].keys() == found["test"].keys() == {"loss", "accuracy"}
    assert found["settings"] == {"task": "ReverseTask", **read_settings(parent / "third try")[1]}
    assert found["versions"] == versions()
    assert found["versions"]["jax"] == jax.__version__
    assert found["criterion"] == "val/accuracy:max"
    assert "git_commit" in found


def test_the_list_says_what_the_results_say(parent):
    run, found = read_run(parent / "third try"), results(parent / "third try")
    assert (run.task, run.state, run.steps, run.num_steps) == ("ReverseTask", "finished", 30, 30)
    assert (run.best_metric, run.best_value) == ("val/accuracy", found["val"]["accuracy"])
    assert run.seconds == found["train_seconds"] + found["eval_seconds"] + found["compile_seconds"]
    evaluation = read_run(parent / "third try_pretrained")
    assert (evaluation.state, evaluation.steps, evaluation.best_value) == ("finished", 0, run.best_value)


def test_a_divergence_is_recorded_with_its_step_and_the_next_training_clears_it(tmp_path):
    settings = {**SETTINGS, "eval_every": 3, "checkpoint_dir": tmp_path, "name": "wild"}
    with pytest.raises(FloatingPointError, match="at step"):
        train_reverse(**settings, lr=1e30)
    marker = json.loads((tmp_path / "wild" / "status.json").read_text())
    assert marker["state"] == "diverged"
    assert marker["reason"].endswith(f"at step {marker['step']}; training stops there")
    run = read_run(tmp_path / "wild")
    assert (run.state, run.reason) == ("diverged", marker["reason"])
    train_reverse(**settings)
    assert read_run(tmp_path / "wild").state == "finished"
