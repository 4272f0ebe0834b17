"""Trainers by task name, and trained models by path or name."""

from pathlib import Path
from typing import Any

from transformer_jax import tasks
from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError, shortened
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.outside_files import as_input_error
from transformer_jax.tasks.own_code import imported
from transformer_jax.trained.load import open_run
from transformer_jax.trained.named import PUBLISHED, model_directory
from transformer_jax.weights.huggingface.pretrained import is_of_transformers

# task name in config.json: name in `tasks`, which imports the trainer when it is first used
TRAINERS = {
    "ReverseTask": "ReverseTrainer",
    "SetAnomalyTask_digits": "AnomalyTrainer",
    "SetAnomalyTask_cifar100": "AnomalyTrainer",
    "SetAnomalyTask_files": "AnomalyTrainer",
    "TranslationTask": "TranslationTrainer",
    "LanguageModelTask": "LanguageModelTrainer",
    "ClassificationTask": "ClassificationTrainer",
    "DictionaryTask": "DictionaryTrainer",
}

TRAINER: dict[str, Any] = {
    "metavar": "FILE.py:CLASS",
    "help": "file and class of your own task's trainer",
}


def trainer_class_of(task: str) -> type[TrainerModule]:
    """The trainer of a task of this package, by the task's name in `config.json`.

    Raises:
        InputError: the package has no such task.
    """
    if task not in TRAINERS:
        raise InputError(
            f"the task is {shortened(task)}, which is not one of {', '.join(TRAINERS)}"
        )
    return getattr(tasks, TRAINERS[task])


def own_trainer(place: str) -> type[TrainerModule]:
    """Import the trainer that `FILE.py:CLASS` names, which executes the file.

    Raises:
        InputError: there is no such file or trainer, or the file raises an error.
    """
    with as_input_error(f"--trainer is {place}; it must be FILE.py:CLASS of a trainer", Exception):
        trainer_class = imported(place)
        if not issubclass(trainer_class, TrainerModule):
            raise TypeError(f"{place.rpartition(':')[2]} is not a TrainerModule")
    return trainer_class


@check_arguments
def load_run(
    directory: str | Path, trainer_class: type[TrainerModule] | None = None
) -> TrainerModule:
    """Open a run: return its trainer, with its `config`, its `model` and its best `params`, ready to `predict`.

    Its `inspected` is the model bound to these parameters, an `inspection.Inspected`. Settings of the machine that
    trained it are ignored: devices, workers, directories, caches.

    Args:
        directory: directory of the run, e.g. `checkpoints/ReverseTask`, or the name of an included model: "reverse",
            "digits" or "dates".
        trainer_class: trainer of the task; None looks it up by the task's name.

    Raises:
        InputError: there is no run; its format, task or settings are unknown, or not those of its training; none of
            its intact checkpoints was evaluated; its parameters are not finite; or a file of a saved model does not
            match its digest.
    """

    def class_of(task: str) -> type[TrainerModule]:
        if trainer_class is None:
            return trainer_class_of(task)
        if not issubclass(trainer_class, TrainerModule):
            raise InputError(
                f"trainer_class is {trainer_class.__name__}; it must be a subclass of TrainerModule"
            )
        name = getattr(trainer_class, "name", task)
        if name != task and isinstance(name, str):  # a property is of several tasks
            raise InputError(
                f"{trainer_class.__name__} is a trainer of {name}, and {directory} is a run of"
                f" {task}"
            )
        return trainer_class

    trainer = open_run(directory, class_of)
    trainer.inspected = Inspected(trainer.model, trainer.variables)
    return trainer


def find_trainer(what: str, trainer: str | None) -> TrainerModule:
    """Load a model with the trainer of its task, ready to `predict`.

    Args:
        what: a run's directory, the name of an included model, or a directory of HuggingFace Transformers.
        trainer: trainer of a run, `FILE.py:CLASS`; None looks it up by the task's name.

    Raises:
        InputError: there is no such model, or it cannot be read; or as `own_trainer`.
    """
    if trainer is not None:
        return load_run(what, own_trainer(trainer))
    directory = model_directory("RUN", what, PUBLISHED)
    if is_of_transformers(directory):
        return tasks.load_transformers(directory)
    return load_run(directory)
