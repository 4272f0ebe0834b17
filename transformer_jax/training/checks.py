"""Checks of a task and of its training, before anything is computed."""

import dataclasses
import difflib
import re
from collections.abc import Collection
from typing import Any

import numpy as np

from transformer_jax.config import EMA, Criterion, TrainingConfig
from transformer_jax.data.loader import Loader
from transformer_jax.errors import MAX_SIZE, InputError, TypeHint, check_method, check_value
from transformer_jax.training.optimizers import OF_WHOLE_ARRAYS
from transformer_jax.training.task import Task

# besides the task's metrics
LOGGED_BY_TRAINING = frozenset({"gradient_norm", "learning_rate"})
REQUIRED = ("create_model", "model_inputs", "loss_function")  # hooks without a default


def check_task(
    kind: type[Task], config: TrainingConfig, base: type[Task], *, has_model: bool
) -> None:
    """Check the class of a task and the names in its settings.

    Args:
        kind: the class.
        config: settings of a task of this class.
        base: the class whose methods a task overrides.
        has_model: whether a model was given, so that `create_model` is not needed.

    Raises:
        InputError: a required method is missing; a method's name looks like a misspelt hook; a hook does not take its
            arguments; `dataset_metric_names` is missing; `loss_terms` has no factors; the settings are not of the class
            `config_class`; `schedule` or `logger` is unknown; or `scan_layers`, which stacks layers, is combined with
            `freeze` or with an optimizer whose updates depend on whole arrays.
    """
    required = [name for name in REQUIRED if not (has_model and name == "create_model")]
    missing = [name for name in required if getattr(kind, name) is getattr(Task, name)]
    if missing:
        raise InputError(
            f"{kind.__name__} lacks {', '.join(missing)}; a task must define it, see Task"
        )
    names = kind.dataset_metric_names
    has_metrics = kind.dataset_metrics is not Task.dataset_metrics
    if isinstance(names, str) or (has_metrics and not names):
        raise InputError(
            f"dataset_metric_names of {kind.__name__} is {names!r}; it must name all"
            " dataset_metrics"
        )
    if isinstance(kind.loss_terms, str | list | tuple | set):
        raise InputError(
            f"loss_terms of {kind.__name__} is {kind.loss_terms!r}; it must give the factor of each"
            ' term, such as {"mse": 1.0}'
        )
    _check_methods(kind, base)
    check_value("config", config, getattr(kind, "config_class", TrainingConfig))
    _check_known("schedule", config.schedule, kind.schedules)
    for logger in config.logger_names:
        _check_known("logger", logger, kind.loggers)
    # before the run's directory is touched
    if len(set(config.logger_names)) < len(config.logger_names):
        raise InputError(f"logger is {config.logger!r}; it must name each logger once")
    if config.optimizer in OF_WHOLE_ARRAYS and config.scan_layers:
        raise InputError(
            f"optimizer is {config.optimizer}, whose updates depend on whole arrays, and"
            " scan_layers is True, which stacks the arrays of layers; they cannot be combined"
        )
    if config.freeze is not None and config.scan_layers:
        raise InputError(
            f"freeze is {config.freeze}, and scan_layers is True; stacked layers cannot be frozen"
        )


def check_result(task: Task, hook: str, result: object, hint: TypeHint) -> Any:
    """Return the result of a task's hook; an `InputError` that names the hook for other types."""
    return check_value(f"the result of {type(task).__name__}.{hook}", result, hint)


def check_targets(task: Task, output: object, loader: Loader) -> None:
    """Look for the reason of a loss that is not finite: targets that are no classes of the model's output.

    Raises:
        InputError: a target of the loader's first epoch is not below the size of the last axis of `output`.
    """
    num_classes = getattr(output, "shape", (0,))[-1]
    for _, targets in loader:
        is_whole = isinstance(targets, np.ndarray) and np.issubdtype(targets.dtype, np.integer)
        if is_whole and targets.max() >= num_classes > 1:
            raise InputError(
                f"targets hold {targets.max()}, the logits of {task.name} have {num_classes} classes,"
                f" 0 … {num_classes - 1}"
            )


def _check_methods(kind: type[Task], base: type[Task]) -> None:
    """Check that a task's hooks take their arguments, and that no other method is named almost like a hook."""
    hooks = [name for name in dir(base) if not name.startswith("_")]
    for name in hooks:
        check_method(kind, name, base)
    for owner in kind.__mro__[: kind.__mro__.index(base)]:
        for name, value in vars(owner).items():
            is_method = callable(value) and not isinstance(value, type)
            if not is_method or name in hooks or name.startswith("_"):
                continue
            similar = difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
            if similar:
                raise InputError(
                    f"{owner.__name__}.{name} overrides no hook; did you mean {similar[0]}?"
                )


def _check_known(setting: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InputError(f"{setting} is {name!r}; it must be one of {', '.join(known)}")


def check_fitting(config: TrainingConfig) -> None:
    """Raise an `InputError` for settings that ask for anything but a single training run."""
    if config.pretrained is not None:
        raise InputError(
            f"pretrained is {config.pretrained}; fit always trains: use train_and_test, or leave"
            " it out"
        )
    if config.seeds is not None or config.sweep:
        raise InputError("fit trains a single run; use train_and_test for seeds and sweep")


def check_num_steps(config: TrainingConfig, loader: Loader) -> int:
    """Return the number of steps of a training run with this loader.

    Raises:
        InputError: the loader's batch size is not `config.batch_size`, there are too many steps, or `config.profile`
            begins after the last step.
    """
    # which divides the rows into steps
    if loader.token_batches is None and loader.batch_size != config.batch_size:
        raise InputError(
            f"train_loader has batches of {loader.batch_size}; config.batch_size is"
            f" {config.batch_size}"
        )
    num_steps = config.num_steps(len(loader))
    if num_steps > MAX_SIZE:  # they are counted in 32 bits
        max_epochs = MAX_SIZE // len(loader)
        raise InputError(
            f"max_epochs is {config.max_epochs}; with these data it may be at most {max_epochs}"
        )
    if config.profile is not None:
        profiled_steps(config.profile, num_steps)
    return num_steps


def check_full_batches(loader: Loader) -> None:
    """Raise an `InputError` if batches of the training set are padded, since statistics would count the padding."""
    if len(loader) * loader.batch_size > len(loader.dataset):
        raise InputError(
            f"train_loader has {len(loader.dataset)} samples in {len(loader)} batches of at most"
            f" {loader.batch_size}; for a model with other variables than parameters, such as"
            " batch_stats, every batch must be full: pass drop_last=True to make_loader"
        )


def with_criterion(config: TrainingConfig, names: Collection[str]) -> TrainingConfig:
    """Return the settings with a criterion for the best model that is one of an evaluation's metrics.

    With `config.ema`, each metric is also computed for the parameters' moving average, with the prefix `ema_`. Unless
    `best_by` or the task sets the criterion, it is the accuracy, or the loss of a task without accuracy.

    Raises:
        InputError: the loss or the criterion's metric is missing, or a metric has a name that training itself logs.
    """
    returned_names = ", ".join(sorted(names))
    returned = f"the loss function returns {returned_names or 'nothing'}"
    if "loss" not in names:
        raise InputError(f"{returned}; it must return loss, which is minimised")
    averaged = {f"{EMA}{name}" for name in names} if config.ema else set()
    reserved = sorted((LOGGED_BY_TRAINING | averaged).intersection(names))
    if reserved:
        raise InputError(
            f"{returned}; {', '.join(reserved)} must have another name, since training logs that name"
            " itself"
        )
    criterion = config.criterion
    if criterion.metric in {*names, *averaged}:
        return config
    if criterion.metric.removeprefix(EMA) in names:
        raise InputError(
            f"best_by is {criterion}, of the parameters' moving average, but ema is {config.ema};"
            " set ema"
        )
    has_own_default = type(config).default_criterion is not TrainingConfig.default_criterion
    if config.best_by is None and not has_own_default:
        return dataclasses.replace(config, best_by=str(Criterion("loss", "min")))
    raise InputError(
        f"best_by is {criterion}; the metrics are {returned_names} (a task of your own"
        " may add metrics in loss_function or dataset_metrics)"
    )


def profiled_steps(text: str, num_steps: int | None = None) -> tuple[int, int]:
    """Parse the two steps of `START:STOP`.

    Args:
        text: START:STOP.
        num_steps: number of steps of the run; None if not known yet.

    Raises:
        InputError: the text has another form, STOP is not above START, or START is not below `num_steps`.
    """
    numbers = re.fullmatch(r"(\d{1,11}):(\d{1,11})", text)
    start, stop = map(int, numbers.groups()) if numbers else (0, 0)
    if start >= stop:
        raise InputError(
            f"profile is {text!r}; it must be START:STOP with START below STOP, such as 100:150"
        )
    if num_steps is not None and start >= num_steps:
        raise InputError(
            f"profile is {text!r}; the first step must be below {num_steps}, the number of steps"
        )
    return start, stop
