"""The trainers by the name of their task, and trained models by one word."""

import os
from pathlib import Path

from transformer_jax import tasks
from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trained.load import open_run
from transformer_jax.trained.named import directory_of, kinds_of_models
from transformer_jax.trained.published import PUBLISHED, load_pretrained
from transformer_jax.training.example_viewer import ExampleViewer
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params
from transformer_jax.weights.huggingface.pretrained import is_of_transformers

TRAINERS = {  # names in `tasks`, whose face imports a trainer when it is first used, by the task's name in config.json
    "ReverseTask": "ReverseTrainer",
    "SetAnomalyTask_digits": "AnomalyTrainer",
    "SetAnomalyTask_cifar100": "AnomalyTrainer",
    "SetAnomalyTask_files": "AnomalyTrainer",
    "TranslationTask": "TranslationTrainer",
    "LanguageModelTask": "LanguageModelTrainer",
    "DictionaryTask": "DictionaryTrainer",
}


def trainer_class_of(task: str) -> type[TrainerModule]:
    """The trainer of a task of this package, by the task's name in `config.json`.

    Raises:
        InputError: the package has no such task.
    """
    if task not in TRAINERS:
        raise InputError(f"the task is {task}; without trainer_class it must be one of {', '.join(TRAINERS)}")
    return getattr(tasks, TRAINERS[task])


@check_arguments
def load_run(directory: str | Path, trainer_class: type[TrainerModule] | None = None) -> TrainerModule:
    """The trainer of a run, with its `config`, its `model` and its best `params`, ready to `predict`.

    Its `inspected` is the model bound to these parameters, an `inspection.Inspected`. Settings that belong to the
    machine of the training are ignored: devices, workers, directories, caches.

    Args:
        directory: of the run, `checkpoints/ReverseTask` for example, or the name of a model that ships: "reverse",
            "digits" or "dates".
        trainer_class: of the task; None looks it up by the task's name.

    Raises:
        InputError: there is no run, its format, task or settings are unknown or not those of its training, none of its
            intact checkpoints was evaluated, its parameters are not finite; or a model that ships does not agree with
            its digests.
    """
    run = open_run(directory, lambda task: trainer_class or trainer_class_of(task))
    run.inspected = Inspected(run.model, {"params": run.params})
    return run


def find_trainer(what: str) -> ExampleViewer:
    """A model with its task, ready to `predict`.

    Args:
        what: a run's directory, the name of a model that ships, a directory of HuggingFace Transformers, or a model of
            the tutorials by name or file.

    Raises:
        InputError: there is no such model, or it can't be read.
    """
    if (directory := directory_of(what)) is not None:
        return tasks.load_transformers(directory) if is_of_transformers(directory) else load_run(directory)
    if what in PUBLISHED or os.path.isfile(what):
        return _tutorials_trainer(*load_pretrained(what))
    raise InputError(f"run is {what}; it must be {kinds_of_models(is_predictor=True)}")


def _tutorials_trainer(model: TransformerPredictor, params: Params) -> TrainerModule:
    """The trainer of a tutorial's task: one prediction for each image is the anomaly task's, several are numbers."""
    sizes = {name: getattr(model, name) for name in ("model_dim", "num_heads", "num_layers")}
    if model.num_classes == 1:
        is_digits = len(params["input_layer"]["kernel"]) == 8 * 8  # pixels are the digits' features
        config_class = tasks.DigitsConfig if is_digits else tasks.Cifar100Config
        trainer: TrainerModule = tasks.AnomalyTrainer(config_class(**sizes), model=model)
    else:
        trainer = tasks.ReverseTrainer(tasks.ReverseConfig(num_categories=model.num_classes, **sizes), model=model)
    trainer.params = params
    return trainer
