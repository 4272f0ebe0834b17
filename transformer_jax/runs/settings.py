"""A run's files by name, and its settings; all of it is read without JAX."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.runs.format import check_format

CONFIG, RESULTS, CHECKPOINTS = "config.json", "results.json", "checkpoints"
STATUS = "status.json"  # of a training that diverged
PARAMETERS = "params.msgpack"  # of a model that ships, instead of checkpoints
LOCK, LOCK_HOLDER = ".lock", ".lock_holder"
MAX_CONFIG_BYTES = 2**20


def differing_settings(one: Mapping[str, Any], other: Mapping[str, Any], neutral: frozenset[str]) -> list[str]:
    """Names of the settings in which two runs differ, but for the neutral ones."""
    return [name for name in sorted((one.keys() | other.keys()) - neutral) if one.get(name) != other.get(name)]


def settings_of(task: str, config: TrainingConfig) -> dict[str, Any]:
    """The content of `config.json`, but for the format number."""
    return as_json({"task": task, **dataclasses.asdict(config)})


class DamagedSettingsError(InputError):
    """A run's `config.json` is missing or can't be read."""


def read_settings(directory: Path) -> tuple[str, dict[str, Any]]:
    """The name of a run's task, and its settings, from its `config.json`.

    Raises:
        InputError: there is no run, or its settings can't be read or are of another format.
    """
    file = directory / CONFIG
    if not os.path.isfile(file):  # also False for a path that no file can have
        raise DamagedSettingsError(f"{directory} holds no run: {CONFIG} is missing")
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_CONFIG_BYTES)  # the rest of a longer one is missing, so that it is no JSON
        settings = json.loads(content.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DamagedSettingsError(f"{file} can't be read as a run's settings: {error}") from error
    if not isinstance(settings, dict) or not isinstance(settings.get("task"), str):
        raise DamagedSettingsError(f"{file} can't be read as a run's settings: it names no task")
    check_format(str(file), settings)
    settings.pop("format", None)
    return settings.pop("task"), settings


def as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with paths as strings and NumPy's numbers as Python's, as it comes back from a file."""

    def convert(value: object) -> object:
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{type(value).__name__} is no JSON")

    as_read: dict[str, Any] = json.loads(json.dumps(dict(content), default=convert))
    return as_read
