"""Open a run or a saved model, from this or another process or machine, or an included model by name."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax.argument_checks import check_numbers
from transformer_jax.config import EMA, ConfigClass, Criterion, TrainingConfig
from transformer_jax.errors import InputError, level_of_user, meant
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.outside_files import Json, outside_file, read_json, standing
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.listing import read_run
from transformer_jax.runs.own_files import digest_of
from transformer_jax.runs.saved_model import DIGESTS, read_digests
from transformer_jax.runs.settings import (
    CHECKPOINTS,
    CONFIG,
    MAX_CONFIG_BYTES,
    PARAMETERS,
    RESULTS,
    WEIGHTS,
    completed,
    differences,
    read_settings,
    runs_in,
    with_kept_files,
)
from transformer_jax.trees import Params, join_variables, merged, split_variables
from transformer_jax.weights.files import MAX_BYTES, read_weights

TrainerClass: TypeAlias = type[TrainerModule]
TrainerClassOf: TypeAlias = Callable[[str], TrainerClass]  # by task name
SHIPPED = Path(__file__).parent / "models"  # one directory per included model


def open_run(directory: str | Path, trainer_class_of: TrainerClassOf) -> TrainerModule:
    """Open a run as `load_run` does, with trainers from `trainer_class_of`.

    Raises:
        InputError: as `load_run`, and as `trainer_class_of`.
    """
    directory = named_directory(directory)
    if not os.path.lexists(directory):
        names = shipped_models()
        hint = meant(str(directory), names) or f"; included models are {', '.join(names)}"
        hint += runs_in(TrainingConfig.checkpoint_dir)
        raise InputError(f"{directory} holds no run: there is no such directory{hint}")
    task, settings = read_settings(directory)
    try:
        trainer_class = trainer_class_of(task)
    except InputError as error:
        stored = read_json(directory / CONFIG, "a run's settings")
        place = stored.get("trainer", "FILE.py:CLASS")
        class_name = place.rpartition(":")[2]
        raise InputError(
            f"{error}; give its trainer: load_run(directory, {class_name}), or"
            f" --trainer {place} in a command"
        ) from None
    try:
        config_class = trainer_class.config_class_of(task)
        settings = completed(config_class, settings)
        config = config_class.from_json(with_kept_files(config_class, settings, directory))
    except InputError as error:
        raise InputError(f"{directory / CONFIG} cannot be used: {error}") from error
    results = {}
    if os.path.lexists(directory / RESULTS):
        results = read_json(directory / RESULTS, "a run's results")
    settings["task"] = task
    params = _trained_params(directory, config_class, settings, config.criterion)
    if not results and not _is_saved(directory):
        warnings.warn(
            f"{directory} is unfinished; these are its best parameters so far",
            stacklevel=level_of_user(),
        )
    if directory.parent != SHIPPED:  # never write beside the included models
        config = dataclasses.replace(config, checkpoint_dir=directory.parent)
    trainer = trainer_class(config)
    trainer.results = results  # with the number of steps
    trainer.params = params
    trainer.trained_length = results.get("trained_length", 0)
    return trainer


def read_trained(directory: Path) -> tuple[Params, Json]:
    """Read the best parameters and the settings of a run, or of a saved model, of any task.

    Raises:
        InputError: as `load_run`, but settings that only some tasks have are not checked.
    """
    task, stored = read_settings(directory)
    settings = completed(TrainingConfig, {"task": task, **stored})
    criterion = TrainingConfig().criterion
    if not _is_saved(directory):
        run = read_run(directory)
        if run.best_metric is None:
            raise InputError(f"{directory} has no checkpoint to read: {run.reason or run.state}")
        criterion = Criterion.parse(f"{run.best_metric}:{run.mode}")
    return merged(_trained_params(directory, TrainingConfig, settings, criterion)), settings


def _is_saved(directory: Path) -> bool:
    """Whether a directory holds a saved model, not a run."""
    return any(os.path.lexists(directory / name) for name in (WEIGHTS, PARAMETERS))


def _trained_params(
    directory: Path, config_class: ConfigClass, settings: Json, criterion: Criterion
) -> Params:
    if _is_saved(directory):
        params = read_params(directory)
    else:
        params = _best_params(directory, config_class, settings, criterion)
    check_numbers(flatten_dict(params, sep="/"), f"the model in {directory}")
    return params


def _best_params(
    directory: Path, config_class: ConfigClass, settings: Json, criterion: Criterion
) -> Params:
    """Load the parameters of a run's best checkpoint, which must have the settings in `config.json`."""
    with contextlib.closing(
        Checkpoints(directory / CHECKPOINTS, criterion, create=False)
    ) as checkpoints:
        best = checkpoints.best()
        if best is None:
            raise InputError(
                f"{directory} has no intact checkpoint that was evaluated; continue its training"
            )
    _check_digests(directory, best.origin.get("files", {}), "its checkpoint")
    saved = completed(config_class, best.origin.get("settings", settings))
    # If a run was extended, its best checkpoint may be older than the extension.
    may_differ = config_class.fields_with("keeps_result") | {"max_epochs"}
    known = {"task", *(field.name for field in dataclasses.fields(config_class))}
    unknown = saved.keys() - known
    differing = differences(saved, settings, may_differ | unknown)
    if differing:
        raise InputError(
            f"{directory / CONFIG} was damaged or changed after the training: {differing[0][:200]}"
        )
    params: Params = best.state["params"]
    if settings["ema"] and criterion.metric.startswith(EMA):
        _, variables = split_variables(params)
        params = join_variables(best.state["opt_state"]["average"], variables)
    return params


def shipped_models() -> list[str]:
    """The names of the included models."""
    return sorted(path.parent.name for path in SHIPPED.glob(f"*/{CONFIG}"))


def named_directory(what: str | Path) -> Path:
    """Directory of the included model named `what`, else `what` as a path; `./reverse` is always a path."""
    if what in shipped_models():
        return SHIPPED / what
    return standing(Path(what))


def read_params(directory: Path) -> Params:
    """The parameters of a saved model.

    Raises:
        InputError: a file is missing, cannot be read, or does not match its digest.
    """
    with outside_file(directory / DIGESTS, "a list of digests", MAX_CONFIG_BYTES) as file:
        digests = read_digests(file)
    weights = WEIGHTS if os.path.lexists(directory / WEIGHTS) else PARAMETERS
    # The settings and the files that they name; the results do not affect the model.
    names = {name for name in (*digests, *os.listdir(directory)) if name.endswith(".json")}
    names.discard(RESULTS)
    checked = {name: digests.get(name) for name in (*names, weights)}
    _check_digests(directory, checked, DIGESTS)
    return unflatten_dict(read_weights(directory / weights).arrays, sep="/")


def _check_digests(directory: Path, digests: Mapping[str, str | None], source: str) -> None:
    """Raise an `InputError` if a file is missing, cannot be read, or does not match its digest."""
    for name, digest in digests.items():
        with outside_file(directory / name, "a file of a model", MAX_BYTES) as file:
            if digest_of(file) != digest:
                raise InputError(
                    f"{file} was damaged or changed: its SHA-256 differs from the one in {source}"
                )
