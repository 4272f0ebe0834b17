"""The moving average of the parameters, evaluated beside them."""

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
