"""Callbacks between the steps, each tested separately."""

import numpy as np
import pytest

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError, InputWarning
from transformer_jax.fit.standard_callbacks import EarlyStopping, LogMetrics, by_class, check_finite
from transformer_jax.training.callbacks import Callback, Evaluation, Step


def sums(loss: float, weight: float = 1.0, rate: float = 0.1):
    return {"loss": (loss, weight), "gradient_norm": (1.0, 1.0), "learning_rate": (rate, 1.0)}


class Log(list):
    """Logger that records its entries."""

    def log(self, step, scalars):
        self.append((step, dict(scalars)))


def test_training_is_logged_every_few_steps_and_at_the_end_of_an_epoch_as_means_since_the_last_entry():
    entries = Log()
    action = LogMetrics(entries.log, every=2, steps_per_epoch=5)
    for step, (loss, weight) in enumerate([(1, 1), (6, 3), (4, 2), (0, 2), (10, 5)], start=1):
        action.on_step(Step(step, sums(loss, weight, rate=step / 10), seconds=0.5))
    assert [step for step, _ in entries] == [2, 4, 5]
    assert [entry["train/loss"] for _, entry in entries] == [7 / 4, 4 / 4, 10 / 5]
    assert [entry["train/learning_rate"] for _, entry in entries] == [0.2, 0.4, 0.5]  # of the last step


def test_the_log_goes_on_after_a_restart_as_if_there_had_been_none():
    whole, parts = Log(), Log()
    uninterrupted, first, second = (LogMetrics(log.log, 3, 100) for log in (whole, parts, parts))
    for step in (1, 2):
        uninterrupted.on_step(Step(step, sums(step), 1.0))
        first.on_step(Step(step, sums(step), 1.0))
    second.restore(first.state())
    for action in (uninterrupted, second):
        action.on_step(Step(3, sums(3), 1.0))
    assert parts == whole == [(3, pytest.approx(whole[0][1]))]
    assert whole[0][1]["train/loss"] == 2


def test_an_evaluation_is_logged_under_the_name_of_the_validation_set_with_the_norms_asked_for():
    entries = Log()
    layers = {"layers_0": {"a": np.full(2, 3.0), "b": {"kernel": np.full((2, 2), 2.0)}}}
    evaluation = Evaluation(10, 2, {"loss": 0.5, "accuracy": 0.25}, {"encoder": layers, "head": np.ones(4)})
    for log_norms in (True, False):
        LogMetrics(entries.log, 2, 5, log_norms=log_norms).on_evaluation(evaluation)
    norms = {"parameter_norm/encoder/layers_0": pytest.approx(34**0.5), "parameter_norm/head": 2.0}
    means = {"val/loss": 0.5, "val/accuracy": 0.25}
    assert entries == [(10, means | norms), (10, means)]


@pytest.mark.parametrize("name", ["loss", "gradient_norm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_or_gradient_that_is_not_finite_is_an_error_with_the_step(name, value):
    check_finite(Step(1, sums(3.0), 1.0))
    with pytest.raises(FloatingPointError, match=f"{name} is {value} at step 2"):
        check_finite(Step(2, sums(3.0) | {name: (value, 1.0)}, 1.0))


@pytest.mark.parametrize(
    ("mode", "patience", "values", "stops_after"),
    [
        ("max", 2, [0.1, 0.5, 0.4, 0.5, 0.6], 4),  # an equal value is no improvement
        ("min", 2, [0.5, 0.4, 0.6, 0.3, 0.4, 0.4], 6),
        ("max", 2, [float("nan"), float("nan"), 0.1], 2),
        ("max", 2, [0.1, 0.2, 0.3], None),
        ("max", 0, [0.3, 0.2, 0.1, 0.0], None),
    ],
)
def test_training_stops_after_some_evaluations_without_a_better_one(mode, patience, values, stops_after):
    stopping = EarlyStopping(Criterion("accuracy", mode), patience)
    wanted = []
    for step, value in enumerate(values, start=1):
        stopping.on_evaluation(Evaluation(step, 1, {"accuracy": value}, {}))
        wanted.append(stopping.wants_to_stop)
        restored = EarlyStopping(Criterion("accuracy", mode), patience)
        restored.restore(stopping.state())
        stopping = restored
    assert (wanted.index(True) + 1 if True in wanted else None) == stops_after


def test_only_a_first_gradient_of_zero_is_said():
    def zero(number):
        return Step(number, sums(3.0) | {"gradient_norm": (0.0, 1.0)}, 1.0)

    check_finite(zero(2))
    with pytest.warns(InputWarning, match="gradient_norm is 0 at step 1; does loss depend on the parameters"):
        check_finite(zero(1))


def test_two_callbacks_of_one_class_are_an_error():
    with pytest.raises(InputError, match="there are two callbacks of class Callback"):
        by_class("callbacks", [Callback(), Callback()])


def test_a_method_for_an_event_that_there_is_not_is_an_error():
    with pytest.raises(InputError, match="Own.on_epoch_end is never called; the events are on_step, on_evaluation, on"):
        type("Own", (Callback,), {"on_epoch_end": lambda self, epoch: None})


@pytest.mark.parametrize(
    ("name", "method", "message"),
    [
        ("on_step", lambda self: None, r"Own.on_step must take on_step\(self, step\): too many positional arguments"),
        (
            "restore",
            lambda self, a, b: None,
            r"Own.restore must take restore\(self, state\): missing a required argument",
        ),
        ("wants_to_stop", lambda self: False, "Own.wants_to_stop is a method; it must be a property"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused_when_it_is_defined(name, method, message):
    with pytest.raises(InputError, match=message):
        type("Own", (Callback,), {name: method})


def test_a_batch_in_which_nothing_counts_is_no_divergence_and_is_named():
    with pytest.raises(InputError, match="the batch of step 7 has the weight 0 in loss: loss_function excludes every"):
        check_finite(Step(7, sums(0.0, weight=0.0), seconds=1.0))
