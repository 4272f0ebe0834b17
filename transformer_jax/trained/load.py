"""Open a trained run, also in another process or on another machine."""

import contextlib
import dataclasses
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError, check_path
from transformer_jax.field_types import shortened
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.settings import CHECKPOINTS, CONFIG, differing_settings, read_settings
from transformer_jax.trained.shipped import SHIPPED, is_shipped, named_directory, read_params
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params
from transformer_jax.weights.layouts import check_numbers

# Module and class of the trainer, by the name of the task in config.json. Your own task: `load_run(path, MyTrainer)`.
TRAINERS = {
    "ReverseTask": ("reverse", "ReverseTrainer"),
    "SetAnomalyTask_digits": ("anomaly.task", "AnomalyTrainer"),
    "SetAnomalyTask_cifar100": ("anomaly.task", "AnomalyTrainer"),
    "SetAnomalyTask_files": ("anomaly.task", "AnomalyTrainer"),
    "TranslationTask": ("translation.task", "TranslationTrainer"),
    "LanguageModelTask": ("language_model.task", "LanguageModelTrainer"),
}


def load_run(directory: str | Path, trainer_class: type[TrainerModule] | None = None) -> TrainerModule:
    """The trainer of a run, with its `config`, its `model` and its best `params`, ready to `predict`.

    Settings that belong to the machine of the training are ignored: devices, workers, directories, caches.

    Args:
        directory: of the run, `checkpoints/ReverseTask` for example, or the name of a model that ships: "reverse",
            "digits" or "dates".
        trainer_class: of the task; None looks it up by the task's name.

    Raises:
        InputError: there is no run, its format, task or settings are unknown or not those of its training, none of its
            intact checkpoints was evaluated, its parameters are not finite or too few for the settings; or a model that
            ships is incomplete, or does not agree with its digests, or has the name of a directory here.
    """
    check_path("directory", directory)
    directory = named_directory(directory)
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
    if is_shipped(directory):
        params: Params = unflatten_dict(read_params(directory), sep="/")
    else:
        params = _best_params(directory, config, {"task": task, **settings})
    check_numbers(flatten_dict(params, sep="/"), f"the model in {directory}")
    _check_sizes(config, params, directory)  # before a model of these sizes is made
    if directory.parent != SHIPPED:  # nothing is ever written beside the models that ship
        config = dataclasses.replace(config, checkpoint_dir=directory.parent)
    trainer = trainer_class(config)
    trainer.params = params
    return trainer


def _best_params(directory: Path, config: TrainingConfig, settings: Mapping[str, Any]) -> Params:
    """The parameters of a run's best checkpoint, which must be of the settings in `config.json`."""
    if not os.path.isdir(directory / CHECKPOINTS):
        raise InputError(f"{directory} has no checkpoint")
    with contextlib.closing(Checkpoints(directory / CHECKPOINTS, config.criterion, create=False)) as checkpoints:
        best = checkpoints.best()
    if best is None:
        raise InputError(
            f"{directory} has no intact checkpoint that was evaluated, so none is the best; continue its training"
        )
    saved = best.origin.get("settings", settings)
    # Of a run that was extended, the best checkpoint may be one from before.
    for name in differing_settings(saved, settings, config.neutral_fields() | {"max_epochs"})[:1]:
        raise InputError(
            f"{directory / CONFIG} was damaged or changed: {name} is {shortened(settings.get(name))}, and was "
            f"{shortened(saved.get(name))} in the training"
        )
    params: object = best.state
    for key in ("opt_state", "average") if config.takes_average else ("params",):
        params = params.get(key) if isinstance(params, Mapping) else None
    if not isinstance(params, Mapping):
        raise InputError(f"{directory} has a best checkpoint without parameters")
    return params


def _check_sizes(config: TrainingConfig, params: Params, directory: Path) -> None:
    """Raise an `InputError` if the settings describe a model that is larger than its parameters."""
    arrays = flatten_dict(params).values()
    numbers = sum(array.size for array in arrays)
    bounds = {
        "num_layers": (len(arrays), "arrays, and each layer has one at least"),
        "model_dim": (
            max((size for array in arrays for size in array.shape), default=0),
            "columns in their widest array",
        ),
    }
    defaults = {field.name: field.default for field in dataclasses.fields(config)}
    for name in sorted(config.model_fields()):
        value = getattr(config, name)
        if value == defaults[name]:  # a model of another width may never read it
            continue
        bound, of_what = bounds.get(name, (numbers, "numbers"))
        if isinstance(value, int) and value > bound:
            raise InputError(
                f"{directory / CONFIG} can't be used: {name} is {value}, and the parameters have only {bound} {of_what}"
            )
