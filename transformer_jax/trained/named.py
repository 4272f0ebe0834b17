"""Find the trained model that `--pretrained` evaluates or from which `--init-from` starts."""

import contextlib
import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import jax
from flax.traverse_util import flatten_dict

from transformer_jax.argument_checks import check_shapes, shapes_of
from transformer_jax.config import ConfigClass, TrainingConfig
from transformer_jax.data.batch import Samples
from transformer_jax.devices.processes import say
from transformer_jax.errors import InputError
from transformer_jax.fields import Values, stored_values
from transformer_jax.fitted.fitted import Fitted
from transformer_jax.flags import flag_of
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.outside_files import Json
from transformer_jax.runs.directory import run_path
from transformer_jax.runs.settings import (
    CHECKPOINTS,
    CONFIG,
    completed,
    read_settings,
    settings_of,
    with_kept_files,
)
from transformer_jax.trained.load import (
    TrainerClass,
    named_directory,
    open_run,
    read_trained,
    shipped_models,
)
from transformer_jax.training.task import Task
from transformer_jax.trees import Params
from transformer_jax.weights.huggingface.hub import local_directory
from transformer_jax.weights.huggingface.pretrained import (
    TOKENIZER,
    from_transformers,
    is_of_transformers,
    model_of_config,
)

# Fields of models, and the settings of tasks for them.
SIZES = {name: name for name in ("model_dim", "num_heads", "num_layers", "dim_feedforward")}
SIZES["num_encoder_layers"] = "num_layers"
PUBLISHED = ", or a directory of HuggingFace Transformers"
HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")

Config = TypeVar("Config", bound=TrainingConfig)


def find_trained(trainer_class: TrainerClass, config: Config) -> tuple[Config, Fitted | None]:
    """Find the run that `config.pretrained` names; return the config with its model's settings, and its model or None.

    Args:
        trainer_class: trainer of the task, for which the model must have been trained.
        config: settings of the task.

    Raises:
        InputError: there is no such model, it cannot be read, is of another task, or was trained on other data.
    """
    what = config.pretrained
    if what is None:
        return config, None
    name = trainer_class(config).name
    directory = model_directory("pretrained", what)
    task, _ = read_settings(directory)
    if task != name:
        raise InputError(
            f"pretrained is {what}, a model of the task {task}; it must be a model of {name}"
        )
    run = open_run(directory, lambda task: trainer_class)
    origin = cast(Config, run.config)  # the same class, since it is the same task
    config.check_trained_on(origin, what)
    settings = {name: getattr(origin, name) for name in _settings_of_model(type(config))}
    return dataclasses.replace(config, **settings), run.fitted


def settings_of_initial(
    config_class: ConfigClass, task: str | None, given: Mapping[str, Any]
) -> Values:
    """Find the settings of the model that `init_from` names, and of its inputs; empty if it has no config.

    A run that started with `init_from` keeps its settings, even if that model has changed or is gone.

    Args:
        config_class: config of the new training; settings that are not its fields are left out.
        task: name of the task, which is also the name of the run's directory if `name` is not given.
        given: settings that are already known.
    """
    what = given.get("init_from")
    if not isinstance(what, str):
        return {}
    parent = given.get("checkpoint_dir", config_class.checkpoint_dir)
    run = Path(parent) / (given.get("name") or task or "")
    with contextlib.suppress(InputError):  # there is no such run yet
        settings = _settings_in(run, config_class, task)
        if settings.get("init_from") == what:
            return _model_values(config_class, settings)
    with contextlib.suppress(InputError):  # `find_initial` will report the problem
        directory = initial_directory(what, config_class)
        if is_of_transformers(directory):
            return _settings_of_transformers(config_class, directory)
        settings = _settings_in(directory, config_class, task)
        return _model_values(config_class, with_kept_files(config_class, settings, directory))
    return {}


def _settings_in(directory: Path, config_class: ConfigClass, task: str | None) -> Json:
    """Settings of a run; if it is of this task, with defaults for settings that are newer than the run."""
    task_of_run, settings = read_settings(directory)
    return completed(config_class, settings) if task_of_run == task else settings


def _model_values(config_class: ConfigClass, settings: Json) -> Values:
    """The settings that define the model, converted to the types of the fields."""
    names = _settings_of_model(config_class) & settings.keys()
    return stored_values(config_class, {name: settings[name] for name in names})


def _settings_of_transformers(config_class: ConfigClass, directory: Path) -> Values:
    """Settings to fine-tune a model of HuggingFace Transformers; empty if the task does not support it."""
    kept = config_class.kept_files()
    if "architecture" not in kept:
        return {}
    settings: Values = {"architecture": directory / CONFIG}
    for field in dataclasses.fields(config_class):
        if field.name in kept and field.default is not None:
            settings[field.name] = str(directory / TOKENIZER)
    model = model_of_config(directory / CONFIG)
    for name, setting in SIZES.items():  # the model's class decides which fields it has
        size = getattr(model, name, None)
        if size is not None:
            settings[setting] = size
    return settings


def find_initial(trainer: Task, example: Samples) -> Params | None:
    """Load the parameters that `config.init_from` names, for `fit`; None if it is None.

    A run that resumes from a checkpoint does not need these parameters: None also if they cannot be read.

    Args:
        trainer: trainer of the new run.
        example: an example of the training set.

    Raises:
        InputError: there is no such model, it cannot be read, is the run itself, does not fit the task, or has another
            number of heads, which the shapes do not show.
    """
    config = trainer.config
    what = config.init_from
    if what is None:
        return None
    path_of_run = run_path(config, trainer.name)
    directory = directory_of(what)
    if directory is not None and directory.resolve() == path_of_run.resolve():
        raise InputError(
            f"init_from is {what}, this run itself; choose another checkpoint_dir or name"
        )

    try:
        params, origin = _initial_model(what, type(config))
        heads = origin.get("num_heads", config.num_heads)
        if heads != config.num_heads:
            raise InputError(
                f"num_heads is {config.num_heads}; it must be {heads}, as in the training of {what}"
            )
        if config.init_only is None:
            check_fits("init_from", params, origin, trainer, example)
        return params
    except InputError as error:
        if not (config.resume and _began_from(path_of_run, what)):
            raise
        say(f"The run in {path_of_run} resumes from its checkpoint, without init_from: {error}")
        return None


def _began_from(run: Path, what: str) -> bool:
    """Whether there is a run with checkpoints that began from the model of this name."""
    with contextlib.suppress(InputError):
        _, settings = read_settings(run)
        return settings.get("init_from") == what and any((run / CHECKPOINTS).glob("[0-9]*"))
    return False


def check_fits(
    setting: str,
    params: Params,
    origin: Json,
    trainer: Task,
    example: Samples,
) -> None:
    """Raise an `InputError` if the parameters are not those of a model of the trainer's task on such samples.

    Args:
        setting: name of the setting that names the model.
        params: parameters of the model.
        origin: the model's settings, from `settings_of`; empty for a model of HuggingFace.
        trainer: trainer of the task.
        example: an example of the task's data.
    """
    what = getattr(trainer.config, setting)
    initial = jax.eval_shape(
        trainer.initial_params, jax.random.key(0), example[0], trainer.constants
    )
    expected = flatten_dict(jax.eval_shape(unstack_layers, initial), sep="/")  # as they are stored
    try:
        shapes = shapes_of(flatten_dict(params, sep="/"))
        check_shapes(shapes, expected, what)
    except InputError as error:
        flags = []  # of settings that differ from the model's
        settings = settings_of(trainer.name, trainer.config)
        for name in sorted(_settings_of_model(type(trainer.config)) & origin.keys()):
            if origin[name] != settings[name]:
                flags.append(flag_of(name, origin[name]))
        remedy = f"; {' '.join(flags)} would fit" if flags else ""
        task = origin.get("task", trainer.name)
        if task != trainer.name:  # then other settings do not suffice
            remedy = f"; it is a model of the task {task}"
        raise InputError(
            f"{setting} is {what}, which does not fit the task and its data: {error}{remedy}"
        ) from error


def _settings_of_model(config_class: ConfigClass) -> frozenset[str]:
    """Names of the settings that define the model, except those of the machine."""
    return config_class.fields_with("defines_model") - config_class.fields_with("per_machine")


def directory_of(what: str) -> Path | None:
    """Directory of a run or an included model, by path or name; None if there is none."""
    directory = named_directory(what)
    # `isdir` is also False for invalid paths.
    return directory if os.path.isdir(directory) else None


def initial_directory(what: str, config_class: ConfigClass) -> Path:
    """Directory as from `directory_of`, or of a hub model, downloaded, if the task can fine-tune it.

    Raises:
        InputError: there is no such model, or it cannot be downloaded.
    """
    if "architecture" not in config_class.kept_files():
        return model_directory("init_from", what)
    if HUB_NAME.fullmatch(what) and not os.path.exists(what):
        return local_directory(what)
    return model_directory("init_from", what, f"{PUBLISHED}, or its hub name, OWNER/NAME")


def model_directory(setting: str, what: str, more: str = "") -> Path:
    """Directory as from `directory_of`; an `InputError` about the setting of this name if there is none.

    The message ends with `more`.
    """
    directory = directory_of(what)
    if directory is None:
        raise InputError(
            f"{setting} is {what}; it must be a run's directory, or an included model"
            f" ({', '.join(shipped_models())}){more}"
        )
    return directory


def _initial_model(what: str, config_class: ConfigClass) -> tuple[Params, Json]:
    """Parameters of the model that `init_from` names, and its settings; none for a model of HuggingFace."""
    directory = initial_directory(what, config_class)
    if is_of_transformers(directory):
        _, variables = from_transformers(directory, dtype="float32")
        return variables["params"], {}
    return read_trained(directory)
