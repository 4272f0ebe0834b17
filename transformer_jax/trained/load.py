"""Open a trained run, also in another process or on another machine."""

import contextlib
import dataclasses
from importlib import import_module
from pathlib import Path

from flax.traverse_util import unflatten_dict

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import CHECKPOINTS, CONFIG, PARAMETERS, read_settings
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params
from transformer_jax.weights.files import read_weights

# Module and class of the trainer, by the name of the task in config.json. Your own task: `load_run(path, MyTrainer)`.
TRAINERS = {
    "ReverseTask": ("reverse", "ReverseTrainer"),
    "SetAnomalyTask_digits": ("anomaly.task", "AnomalyTrainer"),
    "SetAnomalyTask_cifar100": ("anomaly.task", "AnomalyTrainer"),
    "TranslationTask": ("translation.task", "TranslationTrainer"),
}


def load_run(directory: str | Path, trainer_class: type[TrainerModule] | None = None) -> TrainerModule:
    """The trainer of a run, with its `config`, its `model` and its best `params`, ready to `predict`.

    Settings that belong to the machine of the training are ignored: devices, workers, directories, caches.

    Args:
        directory: of the run, `checkpoints/ReverseTask` for example, or of a model that ships.
        trainer_class: of the task; None looks it up by the task's name.

    Raises:
        InputError: there is no run, its format, task or settings are unknown, none of its checkpoints was evaluated,
            or the best one can't be read.
    """
    directory = Path(directory)
    task, settings = read_settings(directory)
    if trainer_class is None:
        if task not in TRAINERS:
            raise InputError(
                f"{directory} is a run of {task}; without trainer_class it must be one of {', '.join(TRAINERS)}"
            )
        module, name = TRAINERS[task]
        trainer_class = getattr(import_module(f"transformer_jax.tasks.{module}"), name)
    try:
        config = trainer_class.config_class_of(task).from_json(settings)
    except InputError as error:
        raise InputError(f"{directory / CONFIG} can't be used: {error}") from error
    trainer = trainer_class(dataclasses.replace(config, checkpoint_dir=directory.parent))
    trainer.params = _best_params(directory, config.criterion)
    return trainer


def _best_params(directory: Path, criterion: Criterion) -> Params:
    if (directory / PARAMETERS).is_file():
        params: Params = unflatten_dict(read_weights(directory / PARAMETERS).arrays, sep="/")
        return params
    if not (directory / CHECKPOINTS).is_dir():
        raise InputError(f"{directory} has no checkpoint")
    with contextlib.closing(Checkpoints(directory / CHECKPOINTS, criterion, create=False)) as checkpoints:
        if checkpoints.best_step is None:
            raise InputError(
                f"{directory} has no checkpoint that was evaluated, so none is the best; continue its training"
            )
        best: Params = checkpoints.read_as_saved(checkpoints.best_step)["params"]
    return best
