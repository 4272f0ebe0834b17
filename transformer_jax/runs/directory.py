"""The directory of a run: TensorBoard events, checkpoints, settings, results, pictures."""

import contextlib
import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import numpy as np
from filelock import FileLock, Timeout

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.format import FORMAT, FormatError, check_format
from transformer_jax.runs.record import write_json
from transformer_jax.runs.tensorboard import PATTERN, SET_ASIDE

CONFIG, RESULTS, CHECKPOINTS = "config.json", "results.json", "checkpoints"
PARAMETERS = "params.msgpack"  # of a model that ships, instead of checkpoints
LOCK, LOCK_HOLDER = ".lock", ".lock_holder"
MAX_CONFIG_BYTES = 2**20
REMEDY = "choose another checkpoint_dir, or --no-resume --overwrite to replace that run"


@runtime_checkable
class Figure(Protocol):
    """Matplotlib's `Figure`, without importing matplotlib."""

    def savefig(self, fname: Path, *, dpi: float) -> None:
        """Write the picture to a file."""


class RunDirectory:
    """`<checkpoint_dir>/<name>/`, or `<name>_pretrained/` for an evaluation, held by one process until it is closed.

    `transformer_jax.config.PRECEDENCE` has the rules for a directory that is not empty, and
    `TrainingConfig.neutral_fields` the settings that may differ when a run is resumed. The directory of an evaluation
    never has checkpoints, and one that has is left alone.

    A run that saved nothing does not bind the next one: its directory may be used with other settings.

    Args:
        config: settings of the run.
        name: of the task.
        data: fingerprint of the data, which each checkpoint knows.

    Attributes:
        path: of the directory.
        settings: name of the task and fields of the config, as JSON.
        checkpoints: of the run.

    Raises:
        InputError: the directory can't be written, or another process holds it; a finished run would be replaced; the
            settings, the data or the format differ. The directory is not held then.
    """

    def __init__(self, config: TrainingConfig, name: str, data: str = "") -> None:
        trains = config.pretrained is None
        self.path = Path(config.checkpoint_dir) / (name if trains else f"{name}_pretrained")
        self.settings = settings_of(name, config)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as held:  # an error below ends what was begun, in reverse order
                held.callback(self._remove_what_was_made_anew)
                held.callback(self._lock().release)
                (self.path / LOCK_HOLDER).write_text(f"process {os.getpid()}")
                if not trains:
                    self._clear_evaluation()
                elif not config.resume:
                    self._clear(config.overwrite)
                origin = {"settings": self.settings, "data": data}
                self.checkpoints = Checkpoints(self.path / CHECKPOINTS, config.criterion, origin=origin, create=trains)
                held.callback(self.checkpoints.close)
                if self.checkpoints.steps or self.is_finished:
                    self._check_origin(data, config.neutral_fields())
                write_json(self.path / CONFIG, {"format": FORMAT, **self.settings})
                self._held = held.pop_all()
        except OSError as error:
            raise InputError(
                f"checkpoint_dir is {config.checkpoint_dir}; it must be a directory that can be written ({error})"
            ) from error

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an `OSError` of the block into an `InputError`: the disk may be full, or the directory gone."""
        try:
            yield
        except OSError as error:
            raise InputError(f"{self.path} can't be written any more ({error})") from error

    @property
    def is_finished(self) -> bool:
        """Whether the run has results."""
        return (self.path / RESULTS).exists()

    def check(self) -> None:
        """Raise an `InputError` if the directory or its config.json has vanished; Orbax would make it anew."""
        with self.writing():
            (self.path / CONFIG).stat()

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write `results.json`, which marks the run as finished.

        Raises:
            InputError: it can't be written.
        """
        with self.writing():
            write_json(self.path / RESULTS, _as_json(results))

    def save_figure(self, name: str, figure: Figure) -> None:
        """Write a picture, a file of this name.

        Raises:
            InputError: it can't be written.
        """
        with self.writing():
            figure.savefig(self.path / name, dpi=150)

    def close(self) -> None:
        """Finish writing the checkpoints, then let another process have the directory; a second call does nothing.

        Raises:
            InputError: a checkpoint could not be written. The directory is not held any more all the same.
        """
        self._held.close()

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _remove_what_was_made_anew(self) -> None:
        """Where the directory vanished while a checkpoint was written, Orbax and TensorBoard have made another one."""
        with contextlib.suppress(OSError):
            if any((self.path / name).exists() for name in (CONFIG, LOCK)):
                return  # it is ours, or another run's
            shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
            for file in self.path.glob(PATTERN):
                file.unlink()
            self.path.rmdir()

    def _lock(self) -> FileLock:
        lock = FileLock(self.path / LOCK)  # the operating system releases it when the process ends, however it does
        try:
            lock.acquire(blocking=False)
        except Timeout:
            holder = self.path / LOCK_HOLDER
            process = holder.read_text() if holder.exists() else "another process"
            raise InputError(
                f"{self.path} is in use by {process}; wait for it, or choose another checkpoint_dir"
            ) from None
        return lock

    def _check_origin(self, data: str, neutral: frozenset[str]) -> None:
        """Raise an `InputError` if the run in the directory is of other settings or of other data."""
        try:
            saved = self.checkpoints.origin()
            if (self.path / CONFIG).exists() or saved is None:
                try:
                    task, settings = read_settings(self.path)
                    self._check_settings({"task": task, **settings}, neutral)
                except DamagedSettingsError as error:
                    if saved is None:
                        raise
                    warnings.warn(f"{error}; it is written anew", stacklevel=3)
        except FormatError as error:
            raise FormatError(f"{error}; {REMEDY}") from None
        if saved is not None:
            self._check_settings(saved["settings"], neutral)
            if saved["data"] != data:
                raise InputError(
                    f"{self.path} holds a run of other data: its training or validation set has changed; {REMEDY}"
                )

    def _check_settings(self, stored: Mapping[str, Any], neutral: frozenset[str]) -> None:
        if differing := differing_settings(stored, self.settings, neutral):
            values = ", ".join(f"{name} was {stored.get(name)} and is {self.settings.get(name)}" for name in differing)
            raise InputError(f"{self.path} holds a run of other settings: {values}; {REMEDY}")

    def _clear(self, overwrite: bool) -> None:
        if (self.path / RESULTS).exists() and not overwrite:
            raise InputError(f"{self.path} holds a finished run; --overwrite would replace it")
        if (self.path / CHECKPOINTS).exists():
            shutil.rmtree(self.path / CHECKPOINTS)
        for pattern in (PATTERN, *SET_ASIDE, RESULTS, "*.png"):
            for file in self.path.glob(pattern):
                file.unlink()

    def _clear_evaluation(self) -> None:
        if (self.path / CHECKPOINTS).exists():
            raise InputError(f"{self.path} holds a training, not an evaluation; choose another checkpoint_dir")
        self._clear(overwrite=True)


def differing_settings(one: Mapping[str, Any], other: Mapping[str, Any], neutral: frozenset[str]) -> list[str]:
    """Names of the settings in which two runs differ, but for the neutral ones."""
    return [name for name in sorted((one.keys() | other.keys()) - neutral) if one.get(name) != other.get(name)]


def settings_of(task: str, config: TrainingConfig) -> dict[str, Any]:
    """The content of `config.json`, but for the format number."""
    return _as_json({"task": task, **dataclasses.asdict(config)})


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


def _as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with paths as strings and NumPy's numbers as Python's, as it comes back from a file."""

    def convert(value: object) -> object:
        if isinstance(value, Path):
            return str(value)
        return value.item() if isinstance(value, np.generic) else value

    as_read: dict[str, Any] = json.loads(json.dumps({name: convert(value) for name, value in content.items()}))
    return as_read
