"""Names and format of a run's files, and its settings, which may come from a user's file; works without JAX."""

import dataclasses
import json
import os
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.config import ConfigClass, TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.fields import stored_values
from transformer_jax.outside_files import (
    MAX_JSON_BYTES,
    Content,
    Json,
    outside_file,
    read_json,
    write_whole,
)

CONFIG, RESULTS, CHECKPOINTS = "config.json", "results.json", "checkpoints"
STATUS = "status.json"  # of a training run that diverged
WEIGHTS = "model.safetensors"  # of a saved model, instead of checkpoints
PARAMETERS = "params.msgpack"  # the same in Flax's format, of the included models
LOCK = ".lock"
MAX_CONFIG_BYTES = 2**20
MAX_NAMED = 9  # runs in an error message

# Format number of config.json and checkpoints. Raise it by one with every change that would make older files misread.
FORMAT = 5
# that is still read; its checkpoints have a digest of the arrays instead of digests of the files
OLDEST_FORMAT = 4
MISSING = "missing"  # shown for a setting that a run does not have
LENGTHS = ("max_epochs ", "max_steps ")  # settings of a run's length
REMEDY = "choose another checkpoint_dir or name=…, or restore what differs to continue that run"


class FormatError(InputError):
    """A run's file is intact, but has a format that this version does not read."""


def check_format(name: str, content: Json) -> None:
    """Raise a `FormatError` unless the JSON object `content`, of a file of this name, has a format that is read."""
    number = content.get("format", 1)  # before there were numbers
    if number not in range(OLDEST_FORMAT, FORMAT + 1):
        raise FormatError(
            f"{name} has format {number}; this version reads {FORMAT} and {OLDEST_FORMAT}"
        )


def write_json(file: Path, content: Content) -> None:
    """Write a JSON file atomically.

    Raises:
        InputError: it is larger than `read_json` accepts.
    """
    text = (json.dumps(content, indent=2) + "\n").encode()
    if len(text) > MAX_JSON_BYTES:
        raise InputError(
            f"{file} would have {len(text)} bytes; it may have at most {MAX_JSON_BYTES}"
        )
    write_whole(file, text)


def as_json(content: Content) -> Json:
    """Convert paths to strings and NumPy scalars to Python numbers, as if read back from a JSON file."""

    def plain(value: object) -> object:
        return value.item() if isinstance(value, np.generic) else str(value)

    return json.loads(json.dumps(dict(content), default=plain))


def description(part: object) -> object:
    """Describe a model or a part of it as JSON, by class, package and fields; functions and classes by name."""
    if isinstance(part, int | float | str | None):
        return part
    if isinstance(part, list | tuple):
        return [description(entry) for entry in part]
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        kind = type(part)
        content: Json = {"class": kind.__name__, "module": kind.__module__.split(".")[0]}
        for field in dataclasses.fields(part):
            if field.name not in ("parent", "name"):
                content[field.name] = description(getattr(part, field.name))
        return content
    return getattr(part, "__name__", type(part).__name__)


def settings_of(task: str, config: TrainingConfig) -> Json:
    """Return the content of `config.json`, without the format number."""
    return as_json({"task": task, **dataclasses.asdict(config)})


def completed(config_class: ConfigClass, stored: Content) -> Json:
    """Add the settings that are newer than a run: their defaults, which must be what the run did without them.

    Only this function decides what a missing setting means. If a setting is renamed or removed, or gets a default that
    changes results, translate the settings of older runs here; `tests/older_runs` holds such runs.
    """
    settings: Json = {}
    for field in dataclasses.fields(config_class):
        if field.default is not dataclasses.MISSING:
            settings[field.name] = field.default
    settings.update(stored)
    return as_json(settings)


def differing_settings(first: Json, *others: Json, ignored: Collection[str]) -> list[str]:
    """Names of the settings in which runs differ, except the `ignored` ones."""
    differing = []
    for name in sorted(set(first).union(*others).difference(ignored)):
        value = first.get(name, MISSING)
        if any(other.get(name, MISSING) != value for other in others):
            differing.append(name)
    return differing


def differences(stored: Json, settings: Json, ignored: Collection[str] = ()) -> list[str]:
    """Name each setting that differs, with both values."""
    return [
        f"{name} was {stored.get(name, MISSING)} and is {settings.get(name, MISSING)}"
        for name in differing_settings(stored, settings, ignored=ignored)
    ]


def with_kept_files(config_class: ConfigClass, settings: Content, directory: Path) -> Json:
    """Return a run's settings with the paths of original files replaced by those of the copies in its directory."""
    changed = dict(settings)
    for name, file in config_class.kept_files().items():
        if os.path.lexists(directory / file):
            changed[name] = str(directory / file)
    return changed


def write_settings(directory: Path, settings: Json, trainer: str | None = None) -> None:
    """Write `config.json`: the settings from `settings_of`, with the format number, and the place of an own trainer."""
    content = {"format": FORMAT, **settings}
    if trainer is not None:
        content["trainer"] = trainer
    write_json(directory / CONFIG, content)


def is_run(directory: Path) -> bool:
    """Whether a directory has a run's `config.json`, of any format."""
    try:
        read_settings(directory)
    except InputError as error:
        return isinstance(error, FormatError)
    return True


def runs_in(directory: Path) -> str:
    """Return `; runs are …` for an error message: the first runs in a directory; empty if none."""
    runs = sorted(str(file.parent) for file in directory.glob(f"*/{CONFIG}"))
    return f"; runs are {', '.join(runs[:MAX_NAMED])}" if runs else ""


def read_settings(directory: Path) -> tuple[str, Json]:
    """Read the name of a run's task and its settings from its `config.json`.

    Raises:
        InputError: there is no run, or its settings can't be read or are of another format.
    """
    file = directory / CONFIG
    if not os.path.isfile(file):  # also False for a path that no file can have
        raise InputError(f"{directory} holds no run: {CONFIG} is missing{runs_in(directory)}")
    settings = read_json(file, "a run's settings", MAX_CONFIG_BYTES)
    if not isinstance(settings.get("task"), str):
        raise InputError(f"{file} does not hold a run's settings: it does not name a task")
    check_format(str(file), settings)
    settings.pop("format", None)
    settings.pop("trainer", None)
    return settings.pop("task"), settings


class ConfigFile(NamedTuple):
    """The content of a settings file."""

    path: Path
    is_run: bool  # a run's own config.json
    task: str | None  # the file's key `task`: the task of the settings
    settings: Json  # from TOML or JSON, unchecked

    def values(
        self,
        config_class: ConfigClass,
        known_elsewhere: Collection[str] = (),
        task: str | None = None,
    ) -> Json:
        """Return the values for the fields of a config, converted to the fields' types.

        A run's file has all of them, but those of its machine are left out.

        Args:
            config_class: class of the config.
            known_elsewhere: keys that are not fields, and are skipped.
            task: the task of the settings, if the file names one; None for any task.

        Raises:
            InputError: a key is unknown, a value's type differs from the field's, or the task is another one.
        """
        try:
            if task is not None and self.task not in (None, task):
                raise InputError(
                    f"task is {self.task}; it must be {task}, the task of this command"
                )
            if self.is_run:
                return config_class.values_of_run(completed(config_class, self.settings))
            return stored_values(config_class, self.settings, known_elsewhere)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None


def read_config_file(path: Path) -> ConfigFile:
    """Read a settings file: a `.toml` file, or the `config.json` of a run, or the directory of a run.

    Raises:
        InputError: the file does not exist, or is neither TOML nor a run's config.json of a supported format.
    """
    if path.is_dir():
        path = path / CONFIG
    if path.suffix == ".toml":
        with outside_file(path, "TOML", MAX_CONFIG_BYTES) as file:
            settings = tomllib.loads(file.read_text(encoding="utf-8"))
        return ConfigFile(path, False, settings.pop("task", None), settings)
    if path.name != CONFIG:
        raise InputError(
            f"--config is {path}; it must be a TOML file, NAME.toml, or a run's {CONFIG}"
        )
    task, settings = read_settings(path.parent)
    return ConfigFile(path, True, task, settings)


def check_settings(path: Path, stored: Json, settings: Json, ignored: Collection[str] = ()) -> None:
    """Raise an `InputError` if settings differ."""
    differing = differences(stored, settings, ignored)
    if differing:
        remedy = REMEDY
        if any(line.startswith(LENGTHS) for line in differing):
            remedy = f"{REMEDY}; init_from='{path}' with another name=… trains its model further"
        raise InputError(
            f"{path} holds a run with different settings: {', '.join(differing)}; {remedy}"
        )


def check_beginning(path: Path, saved: Json, origin: Json, init_from: str | None) -> None:
    """Raise an `InputError` if data or initial parameters differ from those in a run's checkpoints.

    Args:
        path: directory of the run.
        saved: the digests `data` and `initial_params` from the checkpoints.
        origin: the digests given now, and the names of the `files` that count as data. `initial_params` is None for
            fresh parameters, or if the initial model no longer exists, which a resumed run does not need.
        init_from: value of this setting.
    """
    if saved["data"] != origin["data"]:
        changed = " or ".join(("its training or validation set", *origin["files"]))
        raise InputError(f"{path} holds a run with different data: {changed} has changed; {REMEDY}")
    stored = saved.get("initial_params")
    given = origin["initial_params"]
    is_comparable = init_from is None or (stored is not None and given is not None)
    if is_comparable and stored != given:
        source = "the arrays passed to fit" if init_from is None else init_from
        raise InputError(
            f"{path} holds a run with different initial parameters: {source} have changed; {REMEDY}"
        )
