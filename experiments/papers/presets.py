"""Shared code of the papers: default settings, data that are redrawn for each step, losses, and the command line."""

import dataclasses
from collections.abc import Callable, Mapping

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from transformer_jax import (
    TaskData,
    TrainerModule,
    TrainingConfig,
    cli,
    make_loader,
    setting,
    train_and_test,
)
from transformer_jax.data import ArrayDataset

Report = Callable[[TrainerModule, TaskData], Mapping[str, object]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperConfig(TrainingConfig):
    """A constant learning rate without warmup, and gradients that are not clipped."""

    schedule: str = "constant"  # of the learning rate
    warmup: int = 0  # steps in which the learning rate rises
    gradient_clip: float | None = None  # largest norm of the gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class FreshConfig(PaperConfig):
    """Each training step has newly drawn data."""

    steps: int = setting(500, least=1)  # of training, each with samples of its own
    test_size: int = setting(10_000, least=1)  # samples of validation, and of test
    max_epochs: int = 1  # passes over the samples, which are as many as all steps need


class PaperTrainer(TrainerModule):
    """Trainer of a model with one input; it writes no predictions and no attention picture."""

    writes_predictions, attention_picture = False, None

    def model_inputs(self, inputs):
        return (inputs,)


def fresh(
    config: FreshConfig, draw: Callable[[np.random.Generator, int, bool], tuple[object, np.ndarray]]
) -> TaskData:
    """Draw samples for every training step, for validation, and for test.

    Args:
        config: numbers of samples, and their seed.
        draw: returns inputs and targets, given a generator, their number, and whether they are for training.
    """
    sizes = (config.steps * config.batch_size, config.test_size, config.test_size)
    drawn = (
        draw(np.random.default_rng([config.seed, split]), size, split == 0)
        for split, size in enumerate(sizes)
    )
    return TaskData(*(make_loader(ArrayDataset(*samples), config.batch_size) for samples in drawn))


def token_elements(logits: Array, targets: Array) -> dict[str, tuple[Array, Array]]:
    """Cross-entropy and accuracy of classes `[...]` from logits `[..., C]`; targets of -1 are ignored."""
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(targets, 0))
    return {
        "loss": (losses, targets >= 0),
        "accuracy": (logits.argmax(-1) == targets, targets >= 0),
    }


def main(
    trainer_class: type[TrainerModule], presets: Mapping[str, dict], report: Report | None = None
) -> None:
    """Train and test with the arguments of the command line.

    Args:
        trainer_class: trainer of the paper's task; the defaults of its `config_class` are the paper's settings.
        presets: other defaults, by the flag that selects them; each paper has `quick`, which takes seconds.
        report: passed on to `train_and_test`.
    """
    flags = {f"--{name}": settings for name, settings in presets.items()}

    def read_config(arguments: list[str]) -> TrainingConfig:
        config_class, chosen = (
            trainer_class.config_class,
            [flags[flag] for flag in arguments if flag in flags],
        )
        default = config_class(
            **{name: value for settings in chosen for name, value in settings.items()}
        )
        others = [argument for argument in arguments if argument not in flags]
        words = f"{config_class.__doc__} Other defaults: {', '.join(flags)}."
        return cli.parse(
            config_class, others, default=default, description=words, task=trainer_class.name
        )

    cli.run(
        read_config,
        lambda config: train_and_test(trainer_class, config, trainer_class.load_data, report),
    )
