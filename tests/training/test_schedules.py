"""Learning-rate schedules: their formulas, plain and traced, and edge cases."""

import jax
import numpy as np
import pytest

from transformer_jax import TrainingConfig
from transformer_jax.training import cosine_warmup_schedule, noam_schedule, warmup_then_cosine_schedule
from transformer_jax.training.schedules import SCHEDULES


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
