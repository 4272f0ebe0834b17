"""The directory of a run: TensorBoard events, checkpoints, settings, results, pictures."""

import contextlib
import hashlib
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import jax
from filelock import FileLock, Timeout

from transformer_jax.config import TrainingConfig
from transformer_jax.devices.processes import from_first, is_first
from transformer_jax.errors import InputError
from transformer_jax.outside_files import Content, Json, as_input_error, writing_into
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.loggers import CURVES, EVENTS
from transformer_jax.runs.own_files import check_unused, clear, write_listed
from transformer_jax.runs.record import RECORD
from transformer_jax.runs.settings import (
    CHECKPOINTS,
    CONFIG,
    LOCK,
    RESULTS,
    STATUS,
    as_json,
    check_beginning,
    check_settings,
    completed,
    is_run,
    read_settings,
    settings_of,
    write_json,
    write_settings,
)
from transformer_jax.runs.state_arrays import JAX_SETTINGS
from transformer_jax.setting_groups import OF_EVALUATION

if TYPE_CHECKING:
    import matplotlib.figure

LOCK_SECONDS = 0.1  # to wait for the list of runs, which locks a directory for less time


def run_path(config: TrainingConfig, task: str) -> Path:
    """Return the directory of a run or an evaluation, for a task of this name."""
    name = config.name or task
    if config.pretrained is not None:
        name += OF_EVALUATION
    return config.checkpoint_dir / name


def kept_file(config: TrainingConfig, task: str, name: str) -> Path | None:
    """Return the path of a file that the run keeps, or None if it is missing or the run has no checkpoint to resume."""
    path = run_path(config, task)
    has_checkpoint = any((path / CHECKPOINTS).glob("[0-9]*"))
    if config.resume and has_checkpoint and (path / name).is_file():
        return path / name
    return None


class RunDirectory(contextlib.AbstractContextManager["RunDirectory"]):
    """`<checkpoint_dir>/<name>/`, or `<name>_pretrained/` for an evaluation, held by one process until it is closed.

    The name is `config.name`, or the task's if that is None.

    `transformer_jax.setting_groups.RunSettings` has the rules for a directory that is not empty, and
    `TrainingConfig.fields_with("keeps_result")` the settings that may differ when a run is resumed. An evaluation's
    directory never has checkpoints; a directory with checkpoints is refused.

    If a run has saved nothing yet, its directory may be used with other settings.

    If several processes train together, each constructs this for the same shared directory, and calls its methods at
    the same points: the first holds the directory and writes the small files, all write their part of the checkpoints.

    Args:
        config: settings of the run.
        task: name of the task.
        data: fingerprint of the data, stored in each checkpoint.
        initial_params: digest of the given initial parameters, stored in each checkpoint; None for fresh ones, or if a
            resumed run does not need them.
        files: contents of the files that the model needs, by name; each checkpoint stores their digests.
        model: description of the model, by path (see `description`), which is compared as the settings are.
        trainer: `FILE.py:CLASS` of a trainer outside this package, for messages.

    Attributes:
        path: path of the directory.
        settings: name of the task and fields of the config, as JSON.
        checkpoints: checkpoints of the run.

    Raises:
        InputError: the directory can't be written, or is in use by another process; a finished run would be replaced;
            the settings, the data or the format differ. The directory is not held afterwards.
    """

    def __init__(
        self,
        config: TrainingConfig,
        task: str,
        data: str = "",
        initial_params: str | None = None,
        files: Mapping[str, str] | None = None,
        model: Json | None = None,
        trainer: str | None = None,
    ) -> None:
        self.path = run_path(config, task)
        self._trainer = trainer
        self.settings = settings_of(task, config)
        # released by the operating system when the process ends
        self._file_lock = FileLock(self.path / LOCK)
        digests = {
            name: hashlib.sha256(text.encode()).hexdigest() for name, text in (files or {}).items()
        }
        origin: Json = {
            "settings": self.settings,
            "data": data,
            "initial_params": initial_params,
            "jax": {name: getattr(jax.config, name.lower()) for name in JAX_SETTINGS},
            "model": model or {},
            "files": digests,
        }
        # On an error, closes the files and locks opened so far, in reverse order.
        with writing_into("checkpoint_dir", config.checkpoint_dir), contextlib.ExitStack() as held:
            from_first(lambda: self._hold(config, held))
            self.checkpoints = Checkpoints(
                self.path / CHECKPOINTS,
                config.criterion,
                origin=origin,
                create=config.pretrained is None,
            )
            held.callback(self.checkpoints.close)
            saved = self.checkpoints.origin()
            from_first(lambda: self._begin(config, saved, origin))
            self._held = held.pop_all()

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Turn an `OSError` of the block into an `InputError`: the disk may be full, or the directory gone."""
        return as_input_error(f"{self.path} can't be written any more", OSError)

    def held(self) -> contextlib.AbstractContextManager[object]:
        """Hold the directory during a block, also after `close`.

        Raises:
            InputError: it is in use by another process.
        """
        if not is_first():
            return contextlib.nullcontext()
        try:
            return self._file_lock.acquire(timeout=LOCK_SECONDS, poll_interval=LOCK_SECONDS / 10)
        except Timeout:
            raise InputError(
                f"{self.path} is in use by another process; wait for it, or choose another"
                " checkpoint_dir or name"
            ) from None

    @property
    def is_finished(self) -> bool:
        """Whether the run has results."""
        return from_first((self.path / RESULTS).exists)

    def check(self) -> None:
        """Raise an `InputError` if the directory or its config.json has vanished, since Orbax would recreate it."""
        with self.writing():
            from_first(lambda: (self.path / CONFIG).stat().st_size)

    def write_results(self, results: Content) -> None:
        """Write `results.json`, which marks the run as finished.

        Raises:
            InputError: it can't be written.
        """
        self._write(lambda: write_json(self.path / RESULTS, as_json(results)))

    def mark_diverged(self, step: int, reason: str) -> None:
        """Write `status.json`: training diverged at this step. It is removed when the run is resumed or restarted.

        Raises:
            InputError: it can't be written.
        """
        status = {"state": "diverged", "step": step, "reason": reason}
        self._write(lambda: write_json(self.path / STATUS, status))

    def save_figure(self, name: str, figure: "matplotlib.figure.Figure") -> None:
        """Write a figure to a file of this name.

        Raises:
            InputError: it can't be written.
        """
        picture = io.BytesIO()
        figure.savefig(picture, dpi=150, format=Path(name).suffix[1:] or None)
        self._write(lambda: write_listed(self.path, name, picture.getvalue()))

    def save_text(self, name: str, text: str) -> None:
        """Write a text to a file of this name.

        Raises:
            InputError: it can't be written.
        """
        self._write(lambda: write_listed(self.path, name, text.encode()))

    def close(self) -> None:
        """Finish writing the checkpoints, then release the directory; a second call has no effect.

        Raises:
            InputError: a checkpoint could not be written; the directory is released nevertheless.
        """
        self._held.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _write(self, write: Callable[[], object]) -> None:
        """Write a file, only in the first process."""
        if is_first():
            with self.held(), self.writing():
                write()

    def _hold(self, config: TrainingConfig, held: contextlib.ExitStack) -> None:
        """Create the directory, hold it until `held` is closed, and clear it unless a run is resumed."""
        self.path.mkdir(parents=True, exist_ok=True)
        has_checkpoint = any((self.path / CHECKPOINTS).glob(f"*/{RECORD}"))
        if not is_run(self.path) and not has_checkpoint:
            check_unused(self.path)
        held.enter_context(self.held())
        is_evaluation = config.pretrained is not None
        if is_evaluation and (self.path / CHECKPOINTS).exists():
            raise InputError(
                f"{self.path} holds a training run, not an evaluation; choose another"
                " checkpoint_dir or name"
            )
        if config.resume and not is_evaluation:
            return
        is_replaced = is_evaluation or config.overwrite
        if (self.path / RESULTS).exists() and not is_replaced:
            raise InputError(f"{self.path} holds a finished run; use overwrite=True to replace it")
        clear(self.path, EVENTS, CURVES, RESULTS)

    def _begin(self, config: TrainingConfig, saved: Json | None, origin: Json) -> None:
        """Check that the run in the directory is this one, and write `config.json`.

        Args:
            config: settings of this run.
            saved: origin of the run in the directory, as its checkpoints have it.
            origin: origin of this run.
        """
        settings = {**self.settings, **origin["jax"]}
        stored: Json = {}
        if saved is not None:
            stored = {**saved["settings"], **saved.get("jax", {})}
        elif (self.path / RESULTS).exists():  # its checkpoints were deleted
            task, of_file = read_settings(self.path)
            stored = {"task": task, **of_file}
        if stored:
            # Values that an older run has not kept are taken for the same, except settings of the config.
            stored = settings | completed(type(config), stored)
            check_settings(self.path, stored, settings, config.fields_with("keeps_result"))
        if saved is not None:
            check_beginning(self.path, saved, origin, config.init_from)
            model = origin["model"] | saved.get("model", {})
            check_settings(self.path, model, origin["model"])
        write_settings(self.path, self.settings, self._trainer)
        (self.path / STATUS).unlink(missing_ok=True)
