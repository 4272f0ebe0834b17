"""Mistakes in a task that are found when its trainer is made."""

import dataclasses

import jax
import pytest

from transformer_jax import InputError, TrainerModule, TrainingConfig, TransformerPredictor
from transformer_jax.config import Criterion
from transformer_jax.fields import setting
from transformer_jax.training.checks import with_criterion


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(TrainingConfig):
    """Settings."""

    width: int = setting(5, of_model=True)


class Trainer(TrainerModule):
    name = "Trainer"
    config_class = Config

    def create_model(self):
        return TransformerPredictor(self.config.model_dim, num_classes=self.config.width, num_heads=1, num_layers=1)

    def model_inputs(self, inputs):
        return (jax.nn.one_hot(inputs, 7),)

    def loss_function(self, params, batch, key, *, train):
        return {"loss": (self.apply(params, batch.inputs, key, train=train).sum(-1), 1.0)}


def test_missing_methods_are_named():
    class Half(TrainerModule):
        name = "Half"
        config_class = Config

        def create_model(self):
            return TransformerPredictor(5, num_classes=3, num_heads=1, num_layers=1)

    with pytest.raises(InputError, match="Half lacks model_inputs, loss_function; a task defines it"):
        Half(Config())


def test_a_given_model_needs_no_create_model():
    class Given(Trainer):
        create_model = TrainerModule.create_model

    with pytest.raises(InputError, match="Given lacks create_model"):
        Given(Config())
    model = TransformerPredictor(5, num_classes=3, num_heads=1, num_layers=1)
    assert Given(Config(), model=model).model is model


@pytest.mark.parametrize(
    ("name", "meant"),
    [("create_optimiser", "create_optimizer"), ("loss_fuction", "loss_function"), ("predicts", "predict")],
)
def test_a_method_that_is_named_nearly_as_a_hook_is_an_error(name, meant):
    kind = type("Mistaken", (Trainer,), {name: lambda self: None})
    with pytest.raises(InputError, match=f"Mistaken.{name} overrides nothing; is {meant} meant"):
        kind(Config())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"schedule": "cosin"}, "schedule is 'cosin'; it must be one of cosine, noam, constant; did you mean cosine"),
        (
            {"logger": "csv, tensorbord"},
            "logger is 'tensorbord'; it must be one of tensorboard, csv; did you mean tensorboard",
        ),
    ],
)
def test_a_schedule_or_logger_that_is_not_in_its_table_is_an_error(settings, message):
    with pytest.raises(InputError, match=message):
        Trainer(Config(**settings))


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
        (chosen, ["loss"], "gives loss; it must give bleu, since the best model is chosen by val/bleu:max"),
        (config, ["accuracy"], "gives accuracy; it must give loss"),
        (
            Config(best_by="val/ema_loss:min"),
            ["loss"],
            "val/ema_loss:min, of the parameters' moving average",
        ),
        (config, ["loss", "learning_rate"], "learning_rate must have another name"),
    ):
        with pytest.raises(InputError, match=message):
            with_criterion(settings, names)
