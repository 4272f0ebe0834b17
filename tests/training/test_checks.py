"""Mistakes in a task that are found when its trainer is constructed."""

import dataclasses
import functools

import jax
import pytest

from transformer_jax import InputError, TrainerModule, TrainingConfig, TransformerPredictor
from transformer_jax.config import Criterion
from transformer_jax.fields import setting
from transformer_jax.training.checks import with_criterion


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainingConfig):
    """Settings."""

    width: int = setting(5, defines_model=True)


class Trainer(TrainerModule):
    name = "Trainer"
    config_class = Config

    def create_model(self):
        return TransformerPredictor(self.config.model_dim, num_classes=self.config.width, num_heads=1, num_layers=1)

    def model_inputs(self, inputs):
        return (jax.nn.one_hot(inputs, 7),)

    def loss_function(self, params, batch, key, *, train):
        return {"loss": (self.apply(params, batch.inputs, key, train=train).sum(-1), 1.0)}


HALF = type("Half", (TrainerModule,), {"create_model": Trainer.create_model})
GIVEN = type("Given", (Trainer,), {"create_model": TrainerModule.create_model})
NAMELESS = type("Nameless", (Trainer,), {"dataset_metrics": lambda self, params, loader: {"f1": 1.0}})
TERMS = type("Terms", (Trainer,), {"loss_terms": ("mse", "energy")})
ONE_WORD = type("OneWord", (Trainer,), {"dataset_metric_names": "f1"})
NO_STEPS = type("NoSteps", (Trainer,), {"create_optimizer": lambda self: None})
TWO_INPUTS = type("TwoInputs", (Trainer,), {"model_inputs": lambda self, source, target: (source, target)})
MISTAKEN = type("Mistaken", (Trainer,), {"create_optimiser": lambda self: None})


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (HALF, {}, "Half lacks model_inputs, loss_function; a task must define it"),
        (GIVEN, {}, "Given lacks create_model"),
        (NAMELESS, {}, r"dataset_metric_names of Nameless is \(\); it must name all dataset_metrics"),
        (ONE_WORD, {}, "dataset_metric_names of OneWord is 'f1'; it must name all"),
        (TERMS, {}, r"loss_terms of Terms is \('mse', 'energy'\); it must give the factor of each term"),
        (MISTAKEN, {}, "Mistaken.create_optimiser overrides no hook; did you mean create_optimizer"),
        (NO_STEPS, {}, r"NoSteps.create_optimizer must take create_optimizer\(self, num_steps\): too many positional"),
        (TWO_INPUTS, {}, r"TwoInputs.model_inputs must take model_inputs\(self, inputs\): missing a required argument"),
        (Trainer, {"schedule": "cosin"}, "schedule is 'cosin'; it must be one of cosine, noam, inverse_sqrt, constant"),
        (Trainer, {"logger": "csv, csv"}, "logger is 'csv, csv'; it must name each logger once"),
        (Trainer, {"logger": "csv, tensorbord"}, "logger is 'tensorbord'; it must be one of tensorboard, csv"),
    ],
)
def test_a_mistake_in_a_task_or_in_a_name_of_its_settings_is_named(kind, settings, message):
    with pytest.raises(InputError, match=message):
        kind(Config(**settings))


def logged(function):
    @functools.wraps(function)
    def with_any_arguments(*args, **kwargs):
        return function(*args, **kwargs)

    return with_any_arguments


@pytest.mark.parametrize(
    ("name", "method", "result"),
    [
        ("model_inputs", staticmethod(lambda inputs: (inputs,)), (2,)),
        ("model_inputs", functools.partialmethod(lambda self, scale, inputs: (scale * inputs,), 3), (6,)),
        ("model_inputs", logged(lambda self, inputs: (inputs,)), (2,)),
        ("model_inputs", lambda self, inputs, scale=5: (scale * inputs,), (10,)),
        ("create_optimizer", lambda self, *args: args, (2,)),
        ("forward", lambda self, inputs: inputs, 2),
        ("evaluate", lambda self, loader, params=None: {"loader": loader}, {"loader": 2}),
    ],
)
def test_a_hook_may_have_any_signature_that_takes_its_arguments(name, method, result):
    trainer = type("Own", (Trainer,), {name: method})(Config())
    assert getattr(trainer, name)(2) == result


def test_a_given_model_needs_no_create_model():
    model = Trainer(Config()).model
    assert GIVEN(Config(), model=model).model is model


def test_a_task_extends_the_table_of_schedules():
    class Flat(Trainer):
        schedules = {**Trainer.schedules, "flat": lambda config, num_steps: lambda step: config.lr}  # noqa: RUF012

    trainer = Flat(Config(schedule="flat", lr=0.25))
    assert trainer.create_schedule(7)(3) == 0.25
    papers = Flat(Config(schedule="noam", model_dim=6, warmup=4))
    assert papers.create_schedule(7)(4) == pytest.approx(6**-0.5 * 4**-0.5, rel=1e-5)


def test_without_accuracy_the_lowest_loss_is_the_best():
    config = Config()
    assert with_criterion(config, ["loss", "accuracy"]) is config
    assert with_criterion(config, ["loss", "bleu"]).criterion == Criterion("loss", "min")
    chosen = Config(best_by="val/bleu:max")
    assert with_criterion(chosen, ["loss", "bleu"]) is chosen
    for settings, names, message in (
        (chosen, ["loss"], r"^best_by is val/bleu:max; the metrics are loss \(a task of your own may add"),
        (config, ["accuracy"], "returns accuracy; it must return loss"),
        (Config(best_by="val/ema_loss:min"), ["loss"], "val/ema_loss:min, of the parameters' moving average"),
        (config, ["loss", "learning_rate"], "learning_rate must have another name"),
    ):
        with pytest.raises(InputError, match=message):
            with_criterion(settings, names)
