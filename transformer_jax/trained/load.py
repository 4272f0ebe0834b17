"""Open a run that was trained, in another process and directory: no setting is repeated."""

import dataclasses
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from flax.traverse_util import unflatten_dict

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import CHECKPOINTS, CONFIG, PARAMETERS
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.weights.files import read_weights

# Which trainer made a run, by the name in its config.json. A task of your own: `load_run(path, MyTrainer)`.
TRAINERS = {
    "ReverseTask": ("reverse", "ReverseTrainer"),
    "SetAnomalyTask_digits": ("anomaly.task", "AnomalyTrainer"),
    "SetAnomalyTask_cifar100": ("anomaly.task", "AnomalyTrainer"),
    "TranslationTask": ("translation.task", "TranslationTrainer"),
}


def load_run(directory: str | Path, trainer_class: type[TrainerModule] | None = None) -> TrainerModule:
    """The trainer of a run, with its `config`, its `model` and its best `params`; `predict` answers.

    Args:
        directory: of the run, `checkpoints/ReverseTask` for example, or of a model that ships.
        trainer_class: of the task; None looks it up by the run's name.

    Raises:
        InputError: there is no run, its task or settings are unknown, or its checkpoint can't be read.
    """
    directory = Path(directory)
    task, settings = read_settings(directory)
    if trainer_class is None:
        if task not in TRAINERS:
            raise InputError(
                f"{directory} is of the task {task}; give the trainer's class, or one of {tuple(TRAINERS)}"
            )
        module, name = TRAINERS[task]
        trainer_class = getattr(import_module(f"transformer_jax.tasks.{module}"), name)
    config = _config(trainer_class.config_class_of(task), settings, directory)
    trainer = trainer_class(dataclasses.replace(config, num_devices=0))  # those of this machine
    trainer.params = _best_params(directory)
    return trainer


def read_settings(directory: Path) -> tuple[str, dict[str, Any]]:
    """The name of a run's task, and its settings.

    Raises:
        InputError: there is no run, or its settings can't be read.
    """
    if not (directory / CONFIG).is_file():
        raise InputError(f"{directory} holds no run: {CONFIG} is missing")
    try:
        settings = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        return settings.pop("task"), settings
    except (ValueError, KeyError) as error:
        raise InputError(f"{directory / CONFIG} is no run's: {error}") from error


def _best_params(directory: Path) -> dict[str, Any]:
    if (directory / PARAMETERS).is_file():
        return unflatten_dict(read_weights(directory / PARAMETERS).arrays, sep="/")
    checkpoints = Checkpoints(directory / CHECKPOINTS, create=False)
    if checkpoints.best_step is None:
        raise InputError(f"{directory} has no checkpoint")
    return checkpoints.read_as_saved(checkpoints.best_step)["params"]


def _config(config_class: type[TrainingConfig], settings: dict[str, Any], directory: Path) -> TrainingConfig:
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    unknown = settings.keys() - fields.keys()
    if unknown:
        raise InputError(f"{directory / CONFIG} has unknown settings: {', '.join(sorted(unknown))}")
    paths = {name for name, field in fields.items() if "Path" in str(field.type)}
    return config_class(**{n: Path(v) if n in paths and v is not None else v for n, v in settings.items()})
