"""Learning-rate schedules: their formulas, plain and traced, and edge cases."""

import jax
import numpy as np
import optax
import pytest
import torch
from events import read_scalars
from tiny_reverse import fit, loaders, trainer_for

from transformer_jax import InputError, TrainingConfig
from transformer_jax.tasks import ReverseTrainer
from transformer_jax.training import (
    cosine_warmup_schedule,
    noam_schedule,
    one_cycle_schedule,
    warmup_then_cosine_schedule,
)
from transformer_jax.training.schedules import SCHEDULES, Plateau, after_evaluation, with_plateau


@pytest.mark.parametrize("step", [0, 1, 49, 50, 51, 1000, 1999, 2000, 3000])
def test_the_product_of_warmup_and_cosine(step):
    expected = 3e-4 * 0.5 * (1 + np.cos(np.pi * min(step, 2000) / 2000)) * min(1, step / 50)
    assert float(cosine_warmup_schedule(3e-4, 50, 2000)(step)) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0), (25, 2.5e-4), (50, 5e-4), (50 + 975, 2.5e-4), (2000, 0), (3000, 0)]
)
def test_warmup_then_cosine(step, expected):
    assert float(warmup_then_cosine_schedule(5e-4, 50, 2000)(step)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("step", "expected"), [(0, 0), (5, 5e-4), (10, 1e-3), (20, 5.5e-4), (30, 1e-4), (37, 1e-4)])
def test_a_run_decays_to_its_smallest_rate(step, expected):
    config = TrainingConfig(lr=1e-3, min_lr=1e-4, warmup=10)
    assert float(SCHEDULES["cosine"](config, 30)(step)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("warmup", [1, 4000])
@pytest.mark.parametrize("step", [0, 1, 3999, 4000, 4001, 100_000])
def test_the_papers_formula(step, warmup):
    expected = 512**-0.5 * min(step**-0.5 if step else np.inf, step * warmup**-1.5)
    assert float(noam_schedule(512, warmup)(step)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    "schedule", [cosine_warmup_schedule(1.0, 7, 31), warmup_then_cosine_schedule(1.0, 7, 31), noam_schedule(5, 7)]
)
def test_a_traced_step_gives_the_same_as_a_plain_one(schedule):
    steps = np.arange(40)
    # The same formula in float32, with the compiler free to reorder it.
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(steps), [schedule(int(s)) for s in steps], atol=1e-6)


def test_without_warmup_training_begins_at_the_peak():
    assert float(cosine_warmup_schedule(2.0, 0, 31)(0)) == 2
    assert float(warmup_then_cosine_schedule(2.0, 0, 31)(0)) == 2


@pytest.mark.parametrize(("warmup", "rates"), [(0, [0.5, 0.5, 0.5]), (4, [0.0, 0.25, 0.5])])
def test_the_constant_schedule_stays_at_the_peak(warmup, rates):
    schedule = SCHEDULES["constant"](TrainingConfig(lr=0.5, warmup=warmup), 7)
    assert [float(schedule(step)) for step in (0, 2, 31)] == pytest.approx(rates)


@pytest.mark.parametrize(("warmup", "rates"), [(0, [0.5, 0.5, 0.25, 0.1]), (4, [0.0, 0.125, 0.5, 0.2])])
def test_the_inverse_square_root_falls_from_the_given_peak(warmup, rates):
    schedule = SCHEDULES["inverse_sqrt"](TrainingConfig(lr=0.5, warmup=warmup), 31)
    assert [float(schedule(step)) for step in (0, 1, 4, 25)] == pytest.approx(rates)


def of_pytorch(lr):
    """An optimizer of PyTorch without parameters to update, for its schedules."""
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates_of_pytorch(scheduler, num_steps):
    rates = []
    for _ in range(num_steps):
        rates += scheduler.get_last_lr()
        scheduler.optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("num_steps", [4, 10, 37])
def test_one_cycle_has_the_rates_of_pytorch(num_steps):
    expected = rates_of_pytorch(torch.optim.lr_scheduler.OneCycleLR(of_pytorch(1), 0.5, num_steps), num_steps)
    schedule = SCHEDULES["one_cycle"](TrainingConfig(lr=0.5), num_steps)
    np.testing.assert_allclose([schedule(step) for step in range(num_steps)], expected, rtol=1e-5, atol=1e-8)
    options = {"pct_start": 0.5, "div_factor": 10.0, "final_div_factor": 100.0}
    scheduler = torch.optim.lr_scheduler.OneCycleLR(of_pytorch(1), 0.5, num_steps, **options)
    found = jax.vmap(one_cycle_schedule(0.5, num_steps, **options))(np.arange(num_steps))
    np.testing.assert_allclose(found, rates_of_pytorch(scheduler, num_steps), rtol=1e-5, atol=1e-7)


def test_one_cycle_needs_steps_before_and_after_its_peak():
    with pytest.raises(
        InputError, match=r"^one cycle of 3 steps cannot rise during 0.3 of them; this must be more than"
    ):
        one_cycle_schedule(0.5, 3)


def test_multi_step_has_the_rates_of_pytorch_after_each_epoch_of_its_milestones():
    scheduler = torch.optim.lr_scheduler.MultiStepLR(of_pytorch(0.5), [2, 3, 3], gamma=0.3)
    by_epoch = rates_of_pytorch(scheduler, 6)
    config = TrainingConfig(lr=0.5, warmup=0, max_epochs=6, schedule="multi_step", milestones="2,3, 3", lr_factor=0.3)
    schedule = SCHEDULES["multi_step"](config, 30)
    np.testing.assert_allclose([schedule(step) for step in range(30)], np.repeat(by_epoch, 5), rtol=1e-6)
    for settings in ({"milestones": None}, {"milestones": "2", "max_steps": 30}):
        with pytest.raises(InputError, match="it needs milestones, in epochs, such as 30,80, and max_epochs"):
            SCHEDULES["multi_step"](TrainingConfig(**settings), 30)


@pytest.mark.parametrize("best_by", ["val/loss:min", "val/accuracy:max"])
def test_on_a_plateau_the_rate_falls_as_in_pytorch(best_by):
    config = TrainingConfig(lr=0.5, min_lr=0.01, lr_factor=0.3, lr_patience=2, best_by=best_by)
    metric, mode = config.criterion
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(
        of_pytorch(0.5), mode, factor=0.3, patience=2, min_lr=0.01, threshold=1e-4
    )
    state = with_plateau(optax.sgd(0.5)).init({"a": np.zeros(3)})
    better = 1.0001 if mode == "min" else 0.9999
    values = [3, 2, 2, 2, 2 / better**0.5, 1.5, 2, 2, 2, float("nan"), 1, 1, *[4.0] * 12]
    for value in values:
        scheduler.step(value)
        state = after_evaluation(state, config, {metric: float(value)})
        assert 0.5 * float(state[-1].plateau_scale) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-6)
    assert scheduler.get_last_lr() == [0.01]
    assert isinstance(state[-1], Plateau)


class Stalling(ReverseTrainer):
    """The loss of the validation set never improves."""

    def evaluate(self, loader, params=None):
        return super().evaluate(loader, params) | {"loss": 1.0}


@pytest.mark.slow
def test_a_reduced_rate_scales_the_updates_is_logged_and_resumed_to_the_bit(tmp_path):
    settings = {
        "schedule": "reduce_on_plateau", "lr_patience": 0, "lr_factor": 0.5, "eval_every": 1, "warmup": 0, "lr": 0.01,
        "best_by": "val/loss:min", "log_every": 1, "ema": 0.9,
    }  # fmt: skip
    whole = fit(trainer_for(tmp_path / "whole", Stalling, **settings))
    rates = read_scalars(whole.run.path)["train/learning_rate"]
    assert [rates[step] for step in range(1, 16)] == pytest.approx([0.01] * 10 + [0.005] * 5)
    assert whole.run.checkpoints.best_step == 15
    for every, step in ((5, 10), (7, 14)):  # a checkpoint of the step of an evaluation, and one between two
        begun = trainer_for(tmp_path / f"{every}", Stalling, **settings, checkpoint_every=every)
        with begun, begun.training(*loaders()) as loop:
            loop.train_until(step)
        resumed = fit(trainer_for(tmp_path / f"{every}", Stalling, **settings))
        jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
