"""What a training leaves behind: results with their origin, its line in the list of runs, the mark of a divergence."""

import json

import pytest
from finished_runs import REVERSE, finished_run

from transformer_jax import train_reverse
from transformer_jax.runs.listing import read_run
from transformer_jax.runs.settings import read_settings
from transformer_jax.training.results import versions

pytestmark = pytest.mark.slow


def test_results_hold_every_metric_and_their_origin_and_the_list_says_the_same(tmp_path_factory):
    directory = finished_run(tmp_path_factory, "ReverseTask")
    found, run = json.loads((directory / "results.json").read_text()), read_run(directory)
    assert found["val"].keys() == found["test"].keys() == {"loss", "accuracy"}
    assert found["settings"] == {"task": "ReverseTask", **read_settings(directory)[1]}
    assert found["versions"] == versions()
    assert found["criterion"] == "val/accuracy:max"
    assert "git_commit" in found
    assert (run.task, run.state, run.steps, run.num_steps) == ("ReverseTask", "finished", 20, 20)
    assert (run.best_metric, run.best_value) == ("val/accuracy", found["val"]["accuracy"])
    assert run.seconds == found["train_seconds"] + found["eval_seconds"] + found["compile_seconds"]


def test_a_divergence_is_recorded_with_its_step(tmp_path):
    with pytest.raises(FloatingPointError, match="at step"):
        train_reverse(**REVERSE, checkpoint_dir=tmp_path, name="wild", lr=1e30)
    marker = json.loads((tmp_path / "wild" / "status.json").read_text())
    assert marker["state"] == "diverged"
    assert marker["reason"].endswith(f"at step {marker['step']}; training stops there")
    run = read_run(tmp_path / "wild")
    assert (run.state, run.reason) == ("diverged", marker["reason"])
