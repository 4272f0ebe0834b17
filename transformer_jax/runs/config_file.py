"""Settings from a file: TOML that a user wrote, or the `config.json` of a run."""

import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from transformer_jax.errors import InputError, shortened
from transformer_jax.fields import stored_values
from transformer_jax.outside_files import Json, outside_file
from transformer_jax.runs.settings import CONFIG, MAX_CONFIG_BYTES, read_settings


class ConfigFile(NamedTuple):
    """The content of a file of settings."""

    path: Path
    is_run: bool  # a run's own config.json
    task: str | None  # the file's key `task`: of which task the settings are
    settings: Json  # as TOML or JSON has them, unchecked

    def values(self, config_class: type, known_elsewhere: Collection[str] = ()) -> Json:
        """The values for the fields of a dataclass, each of its field's type.

        Args:
            config_class: the dataclass.
            known_elsewhere: keys that are no fields of it and are passed over.

        Raises:
            InputError: a key is unknown, or its value is of another type than the field.
        """
        try:
            return stored_values(config_class, self.settings, known_elsewhere)
        except InputError as error:
            raise InputError(f"{self.path}: {error}") from None

    def check_task(self, task: str) -> None:
        """Raise an `InputError` if the file says that its settings are of another task."""
        if self.task is not None and self.task != task:
            raise InputError(f"{self.path}: task is {self.task}; it must be {task}, the task of this command")


def read_config_file(path: Path) -> ConfigFile:
    """Read a file of settings: TOML if its name ends so, else the `config.json` of a run, or the run's directory.

    Raises:
        InputError: there is no such file, or it is no TOML or no run's config.json of the present format.
    """
    if path.is_dir():
        path = path / CONFIG
    if path.suffix == ".toml":
        settings = _read_toml(path)
        task = settings.pop("task", None)
        if not isinstance(task, str | None):
            raise InputError(f"{path}: task is {shortened(task)}; it must be a text")
        return ConfigFile(path, False, task, settings)
    if path.name != CONFIG:
        raise InputError(f"config is {path}; it must be a TOML file, NAME.toml, or a run's {CONFIG}")
    task, settings = read_settings(path.parent)
    return ConfigFile(path, True, task, settings)


def _read_toml(path: Path) -> Json:
    with outside_file(path, "TOML", MAX_CONFIG_BYTES) as file:
        return tomllib.loads(file.read_text(encoding="utf-8"))
