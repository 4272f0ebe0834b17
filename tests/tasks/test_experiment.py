"""The protocol of experiments: a model that was trained is not lost where its scoring fails."""

import re

import jax
import numpy as np
import pytest
from finished_runs import REVERSE

from transformer_jax import InputError, ReverseConfig
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.experiment import train_and_test
from transformer_jax.tasks.reverse import reverse_data
from transformer_jax.training.signals import Interrupted


def run(directory, report, **settings):
    return train_and_test(
        ReverseTrainer, ReverseConfig(checkpoint_dir=directory, **REVERSE, **settings), reverse_data, report
    )


@pytest.mark.slow
def test_where_scoring_fails_the_model_is_kept_and_the_same_command_scores_it_without_training(tmp_path, capsys):
    params, error = [], RuntimeError("no\nscore")

    def fail(trainer, data):
        params.append(trainer.params)
        raise error

    directory = tmp_path / "ReverseTask"
    message = (
        f"scoring failed (RuntimeError: no score); {directory} keeps the model, and the same command (without "
        "--no-resume) scores it again, without training"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        run(tmp_path, fail)
    assert not (directory / "results.json").exists()
    error = InputError("the disk is full")  # the user's: shown without its class
    with pytest.raises(InputError, match=r"^scoring failed \(the disk is full\); .*keeps the model"):
        run(tmp_path, fail)
    error = Interrupted(15, 5)
    with pytest.raises(Interrupted, match="SIGTERM"):
        run(tmp_path, fail)
    capsys.readouterr()
    trainer, results = run(tmp_path, lambda trainer, data: {"score": 0.25})
    assert "Going on after step 20 of 20" in capsys.readouterr().out
    assert (results["score"], results["steps"]) == (0.25, 20)
    jax.tree.map(np.testing.assert_array_equal, trainer.params, params[0])


def test_more_steps_than_can_be_counted_are_refused_before_training(tmp_path):
    config = ReverseConfig(**(REVERSE | {"max_epochs": 2**31 - 1}), checkpoint_dir=tmp_path / "runs")
    with pytest.raises(InputError, match="max_epochs is 2147483647; with 10 batches in an epoch it may be"):
        train_and_test(ReverseTrainer, config, reverse_data)
    assert not (tmp_path / "runs").exists()
