"""More epochs: a finished run goes on where its schedule allows it. The moving average, evaluated beside."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from events import read_scalars

from transformer_jax import InputError, ReverseConfig, load_run
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.tasks.reverse import reverse_data, train_reverse

SMALL = {
    "max_epochs": 2, "train_size": 71, "val_size": 37, "test_size": 29, "batch_size": 7, "warmup": 3,
    "seq_len": 5, "num_categories": 3, "model_dim": 6, "eval_every": 1, "best_by": "val/loss:max",
}  # fmt: skip


def config(parent: Path, **settings) -> ReverseConfig:
    return ReverseConfig(**(SMALL | {"checkpoint_dir": parent} | settings))


def assert_same(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.slow
def test_a_run_whose_schedule_ignores_the_number_of_steps_is_extended_as_if_it_had_been_longer(tmp_path, capsys):
    noam = {"schedule": "noam", "best_by": None}
    train_reverse(config(tmp_path, **noam))
    capsys.readouterr()
    extended, results = train_reverse(config(tmp_path, **noam, max_epochs=3))
    assert "Going on after step 20 of 30" in capsys.readouterr().out
    longer, expected = train_reverse(config(tmp_path / "longer", **noam, max_epochs=3))
    assert (results["steps"], results["val"]) == (30, expected["val"])
    assert_same(extended.params, longer.params)
    assert load_run(tmp_path / "ReverseTask").config.max_epochs == 3
    still_longer = ReverseTrainer(config(tmp_path, **noam, max_epochs=7))
    data = reverse_data(still_longer.config)
    with pytest.raises(InputError, match="a run of other data"):
        still_longer.fit(data.train_loader, data.test_loader)
    assert (tmp_path / "ReverseTask" / "results.json").exists()
    with pytest.raises(InputError, match="max_epochs was 3 and is 2; choose another checkpoint_dir or name"):
        train_reverse(config(tmp_path, **noam))


@pytest.mark.slow
def test_the_best_model_may_be_one_from_before_the_extension(tmp_path):
    best = []
    for max_epochs in (2, 4):  # the loss falls, so the first evaluation is the best
        trainer, _ = train_reverse(config(tmp_path, schedule="noam", warmup=300, max_epochs=max_epochs))
        best.append(trainer.params)
    assert_same(*best)
    assert 10 in trainer.run.checkpoints.steps
    assert_same(load_run(tmp_path / "ReverseTask").params, best[0])


@pytest.mark.slow
def test_where_the_schedule_depends_on_it_the_error_says_how_to_train_on(tmp_path):
    train_reverse(config(tmp_path))
    results = tmp_path / "ReverseTask" / "results.json"
    before = results.read_bytes()
    message = "max_epochs was 2 and is 3; its schedule was made for that number, so a longer training is a new run: "
    with pytest.raises(InputError, match=f"{message}give it another name, and --init-from {tmp_path}/ReverseTask to"):
        train_reverse(config(tmp_path, max_epochs=3))
    with pytest.raises(InputError, match="lr was 0.0005 and is 0.1, max_epochs was 2 and is 3; choose another"):
        train_reverse(config(tmp_path, max_epochs=3, lr=0.1))
    train_reverse(config(tmp_path, max_epochs=3, name="more", init_from=str(tmp_path / "ReverseTask")))
    assert results.read_bytes() == before


@pytest.mark.slow
def test_the_average_is_evaluated_beside_the_parameters_chosen_by_its_own_metric_and_resumed_to_the_bit(tmp_path):
    settings = {"ema": 0.9, "best_by": "val/ema_loss:min", "checkpoint_every": 1, "lr": 0.01}
    whole, results = train_reverse(config(tmp_path / "whole", **settings))
    begun = ReverseTrainer(config(tmp_path, **settings))
    data = reverse_data(begun.config)
    with begun.training(data.train_loader, data.val_loader) as loop:
        loop.train_until(7)
        assert 7 <= loop.step < 20
    begun.run.close()
    resumed, _ = train_reverse(config(tmp_path, **settings))
    assert_same(resumed.params, whole.params)
    assert_same(load_run(tmp_path / "ReverseTask").params, whole.params)

    scalars = read_scalars(tmp_path / "ReverseTask")
    assert {"val/ema_loss", "val/ema_accuracy"} <= scalars.keys()
    losses = scalars["val/ema_loss"]
    assert results["val"]["loss"] == pytest.approx(min(losses.values()), rel=1e-6)
    assert losses[10] != pytest.approx(scalars["val/loss"][10], rel=1e-4)
    settings_of_run = json.loads((tmp_path / "ReverseTask" / "config.json").read_text())
    assert settings_of_run["ema"] == 0.9


def test_a_metric_of_the_average_needs_one(tmp_path):
    with pytest.raises(InputError, match="best_by is val/ema_loss:min, of the parameters' moving average, but ema is"):
        train_reverse(config(tmp_path, best_by="val/ema_loss:min"))
