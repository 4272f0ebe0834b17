"""The protocol of every experiment: load the data, train or take a trained model, report, test."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from transformer_jax.config import MAX_COUNT, TrainingConfig
from transformer_jax.data.downloads import in_one_line
from transformer_jax.data.loader import Loader
from transformer_jax.errors import InputError
from transformer_jax.trained.pretrained import check_fits, find_trained
from transformer_jax.training.compilation import prepare_jax
from transformer_jax.training.signals import Interrupted
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Arrays

Config = TypeVar("Config", bound=TrainingConfig)
Trainer = TypeVar("Trainer", bound=TrainerModule)
Data = TypeVar("Data", bound="TaskData")

Results = dict[str, Any]  # what `results.json` holds


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Data sets of a task. A task may add fields of its own, for its report."""

    train_loader: Loader
    val_loader: Loader
    test_loader: Loader
    constants: Arrays = dataclasses.field(
        default=None, kw_only=True
    )  # arrays that every step reads, see `TrainerModule`


def train_and_test(
    trainer_class: type[Trainer],
    config: Config,
    load_data: Callable[[Config], Data],
    report: Callable[[Trainer, Data], Results] | None = None,
) -> tuple[Trainer, Results]:
    """Train a task and test it; leave a run directory with checkpoints and results.

    With `config.pretrained` nothing is trained: that model is tested, and the results get a directory of their own.

    Args:
        trainer_class: of the task.
        config: its settings.
        load_data: the data sets for these settings.
        report: examines the trained model, saves pictures in the run's directory, and returns further results.

    Returns:
        The trainer, with the best parameters in `trainer.params`, and what `results.json` holds.

    Raises:
        InputError: the pretrained model does not fit the task; what `TrainerModule.fit` raises; or the report or the
            test failed, and the error says how to score the model again.
    """
    prepare_jax(config)
    config, trained = find_trained(trainer_class, config)
    data = load_data(config)
    _check_num_steps(config, len(data.train_loader))
    trainer = trainer_class(config, data.constants, model=None if trained is None else trained.model)
    if trained is None:
        trainer.fit(data.train_loader, data.val_loader)
    else:
        check_fits(trained, trainer, data.train_loader.example())
        trainer.adopt(trained.params)
        print(f"Nothing is trained: {trained.what} is evaluated, into {trainer.run.path}")
    try:
        more = {} if report is None else report(trainer, data)
        return trainer, trainer.test(data.val_loader, data.test_loader, **more)
    except (Interrupted, BrokenPipeError):  # a signal; nobody reads the output any more
        raise
    except Exception as error:  # of any class: hours of training must not end in a traceback
        reason = in_one_line(error) if isinstance(error, InputError) else in_one_line(error, with_class=True)
        where = f"{trainer.run.path} keeps the model" if trained is None else f"nothing happened to {trained.what}"
        raise InputError(
            f"scoring failed ({reason}); {where}, and the same command (without --no-resume) scores it again, "
            "without training"
        ) from error
    finally:
        trainer.run.close()


def _check_num_steps(config: TrainingConfig, steps_per_epoch: int) -> None:
    if steps_per_epoch * config.max_epochs > MAX_COUNT:
        raise InputError(
            f"max_epochs is {config.max_epochs}; with {steps_per_epoch} batches in an epoch it may be at most "
            f"{MAX_COUNT // steps_per_epoch}, since steps are counted in 32 bits"
        )
