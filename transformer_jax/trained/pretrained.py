"""`--pretrained`: find a trained model, which is then evaluated instead of training one."""

import dataclasses
import os
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import flax.linen as nn
import jax
from flax.traverse_util import flatten_dict
from jaxtyping import PRNGKeyArray

from transformer_jax.attention.attention import Implementation
from transformer_jax.config import TrainingConfig
from transformer_jax.data.batch import Samples
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.runs.settings import read_settings
from transformer_jax.trained.load import load_run
from transformer_jax.trained.published import PUBLISHED, load_pretrained
from transformer_jax.trained.shipped import named_directory, shipped_models
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params
from transformer_jax.weights.layouts import check_arrays

Config = TypeVar("Config", bound=TrainingConfig)


class Trained(NamedTuple):
    """A trained model."""

    what: str  # its name or path, as the user gave it
    model: nn.Module
    params: Params


def find_trained(trainer_class: type[TrainerModule], config: Config) -> tuple[Config, Trained | None]:
    """The config with the settings of the model that `config.pretrained` names, and that model; None for None.

    Args:
        trainer_class: of the task, which must be the model's too.
        config: settings of the task.

    Raises:
        InputError: there is no such model, it cannot be read, is of another task, or was trained on other data.
    """
    what = config.pretrained
    if what is None:
        return config, None
    origin: TrainingConfig | TransformerPredictor
    task = trainer_class(config)
    is_predictor = isinstance(task.model, TransformerPredictor)  # which the tutorials' models are
    if (directory := directory_of(what)) is not None:
        made_by, _ = read_settings(directory)
        if made_by != task.name:
            raise InputError(f"pretrained is {what}, a model of the task {made_by}; it must be one of {task.name}")
        run = load_run(directory, trainer_class)
        config.check_trained_on(cast(Config, run.config), what)  # of one class, since the tasks have one name
        origin, trained = run.config, Trained(what, run.model, run.params)
    elif is_predictor and (what in PUBLISHED or os.path.isfile(what)):
        model, params = load_pretrained(what, num_heads=config.num_heads)
        origin, trained = model, Trained(what, model, params)
    else:
        raise InputError(f"pretrained is {what}; it must be {kinds_of_models(is_predictor)}")
    # A predictor lacks the settings of how its blocks are computed, which are the user's; so are those of the machine.
    names = config.model_fields() - config.machine_fields()
    of_model = {name: getattr(origin, name) for name in names if hasattr(origin, name)}
    trained = trained._replace(model=with_attention(trained.model, config.attention))
    return dataclasses.replace(config, **of_model), trained


def with_attention(model: nn.Module, implementation: Implementation) -> nn.Module:
    """The same model with another implementation of attention, if it is one of this package's."""
    if not isinstance(model, SettingsModule):
        return model
    attention = dataclasses.replace(model.settings.attention, implementation=implementation)
    return model.clone(settings=dataclasses.replace(model.settings, attention=attention))


def check_fits(trained: Trained, trainer: TrainerModule, example: Samples) -> None:
    """Raise an `InputError` if the parameters are not those of a model of the trainer's task on such samples."""
    inputs, _ = example
    own_model = trainer.create_model()  # of the sizes that the task needs; the trainer's is the trained one

    def initial_params(key: PRNGKeyArray) -> Params:
        params: Params = own_model.init(key, *trainer.model_inputs(trainer.prepare(inputs, trainer.constants)))[
            "params"
        ]
        return params

    expected = jax.eval_shape(initial_params, jax.random.key(0))
    shapes = {path: leaf.shape for path, leaf in flatten_dict(expected, sep="/").items()}
    try:
        check_arrays(flatten_dict(trained.params, sep="/"), shapes, trained.what)
    except InputError as error:
        raise InputError(f"pretrained is {trained.what}, which does not fit the task and its data: {error}") from error


def directory_of(what: str) -> Path | None:
    """The directory of a run, or of a model that ships, by its path or name; None if it is neither."""
    directory = named_directory(what)
    # `isdir` is also False for a path that no file can have.
    return directory if what not in PUBLISHED and os.path.isdir(directory) else None


def kinds_of_models(is_predictor: bool) -> str:
    """The models that may be named, for an error; those of the tutorials are predictors."""
    files = f", a file of the tutorials, or one of {', '.join(PUBLISHED)}" if is_predictor else ""
    return f"a run's directory, a model that ships ({', '.join(shipped_models()) or 'there is none here'}){files}"
