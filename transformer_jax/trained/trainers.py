"""The trainer of any trained model by one word: a run, a model that ships, or one of the tutorials."""

import os
from importlib import import_module

from transformer_jax.errors import InputError
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trained.load import load_run
from transformer_jax.trained.pretrained import directory_of, kinds_of_models
from transformer_jax.trained.published import PUBLISHED, load_pretrained
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params


def find_trainer(what: str) -> TrainerModule:
    """The trainer of a model, ready to `predict`.

    Args:
        what: a run's directory, the name of a model that ships, or a model of the tutorials by name or file.

    Raises:
        InputError: there is no such model, or it can't be read.
    """
    if (directory := directory_of(what)) is not None:
        return load_run(directory)
    if what in PUBLISHED or os.path.isfile(what):
        return _tutorials_trainer(*load_pretrained(what))
    raise InputError(f"run is {what}; it must be {kinds_of_models(is_predictor=True)}")


def _tutorials_trainer(model: TransformerPredictor, params: Params) -> TrainerModule:
    """The trainer of a tutorial's task: one prediction for each image is the anomaly task's, several are numbers."""
    sizes = {name: getattr(model, name) for name in ("model_dim", "num_heads", "num_layers")}
    if model.num_classes == 1:
        module = import_module("transformer_jax.tasks.anomaly.task")
        is_digits = len(params["input_layer"]["kernel"]) == 8 * 8  # pixels are the digits' features
        config_class = module.DigitsConfig if is_digits else module.Cifar100Config
        trainer: TrainerModule = module.AnomalyTrainer(config_class(**sizes), model=model)
    else:
        module = import_module("transformer_jax.tasks.reverse")
        config = module.ReverseConfig(num_categories=model.num_classes, **sizes)
        trainer = module.ReverseTrainer(config, model=model)
    trainer.params = params
    return trainer
