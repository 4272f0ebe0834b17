"""The directory that a run leaves: TensorBoard events, checkpoints, config, results, pictures."""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from matplotlib.figure import Figure

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.tensorboard import PATTERN, EventLog

CONFIG, RESULTS, CHECKPOINTS = "config.json", "results.json", "checkpoints"
PARAMETERS = "params.msgpack"  # in the place of the checkpoints, where a model is shipped


class RunDirectory:
    """`<checkpoint_dir>/<name>/`, held by one process at a time; `<name>_pretrained/` where nothing is trained.

    What is done with what lies there is said by `transformer_jax.config.PRECEDENCE`. The settings that may differ are
    `TrainingConfig.NEUTRAL`. The directory of an evaluation never has checkpoints, and one that has is left alone.

    Raises:
        InputError: the directory can't be written or another process holds it; a finished run would be lost, or the
            settings differ.
    """

    def __init__(self, config: TrainingConfig, name: str) -> None:
        trains = config.pretrained is None
        self.path = Path(config.checkpoint_dir) / (name if trains else f"{name}_pretrained")
        self._events: EventLog | None = None
        self.settings = _as_json({"task": name, **dataclasses.asdict(config)})
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
            if not trains:
                self._clear_evaluation()
            elif config.resume:
                self._check_settings(config.NEUTRAL)
            else:
                self._clear(config.overwrite)
            self._write_json(CONFIG, self.settings)
            self.checkpoints = Checkpoints(self.path / CHECKPOINTS, create=trains)
        except OSError as error:
            raise InputError(
                f"checkpoint_dir is {config.checkpoint_dir}; it must be a directory that can be written ({error})"
            ) from error

    def open_events(self, last_step: int, last_evaluation: int) -> None:
        """Begin to log, after what was logged up to a step and an evaluation."""
        self._events = EventLog(self.path, last_step, last_evaluation)

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars to TensorBoard, as they are after `step` steps."""
        with self._writing():
            self._events.log(step, scalars)

    def flush(self) -> None:
        """Have every scalar on disk.

        Raises:
            InputError: it can't be written, or the directory is not there any more.
        """
        with self._writing():
            self._events.flush()
            (self.path / CONFIG).stat()  # Orbax would make the directory anew

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Write `results.json`: the run is finished."""
        with self._writing():
            self._write_json(RESULTS, _as_json(results))

    def save_figure(self, name: str, figure: Figure) -> None:
        """Write a picture."""
        with self._writing():
            figure.savefig(self.path / name, dpi=150)

    def close(self) -> None:
        """Finish writing and let go of the directory."""
        events, self._events = self._events, None
        try:
            self.checkpoints.close()
            if events is not None:
                with self._writing():
                    events.close()
        finally:
            self._held.release()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """The disk may be full, or the directory gone: for the user to mend, as at the beginning."""
        try:
            yield
        except OSError as error:
            raise InputError(f"{self.path} can't be written any more ({error})") from error

    def _lock(self) -> None:
        # The operating system releases it with the process, however that ends.
        self._held = FileLock(self.path / ".lock")
        holder = self.path / ".lock_holder"
        try:
            self._held.acquire(blocking=False)
        except Timeout:
            process = holder.read_text() if holder.exists() else "another process"
            raise InputError(
                f"{self.path} is in use by {process}; wait for it, or choose another checkpoint_dir"
            ) from None
        holder.write_text(f"process {os.getpid()}")

    def _check_settings(self, neutral: frozenset[str]) -> None:
        if not (self.path / CONFIG).exists():
            return
        stored = json.loads((self.path / CONFIG).read_text(encoding="utf-8"))
        names = sorted((stored.keys() | self.settings.keys()) - neutral)
        differing = [name for name in names if stored.get(name) != self.settings.get(name)]
        if differing:
            values = ", ".join(f"{name} was {stored.get(name)} and is {self.settings.get(name)}" for name in differing)
            raise InputError(
                f"{self.path} holds a run of other settings: {values}; "
                "choose another checkpoint_dir, or --no-resume --overwrite to replace that run"
            )

    def _clear(self, overwrite: bool) -> None:
        if (self.path / RESULTS).exists() and not overwrite:
            raise InputError(f"{self.path} holds a finished run; --overwrite would replace it")
        if (self.path / CHECKPOINTS).exists():
            shutil.rmtree(self.path / CHECKPOINTS)
        for pattern in (PATTERN, RESULTS, "*.png"):
            for file in self.path.glob(pattern):
                file.unlink()

    def _clear_evaluation(self) -> None:
        if (self.path / CHECKPOINTS).exists():
            raise InputError(f"{self.path} holds a training, not an evaluation; choose another checkpoint_dir")
        self._clear(overwrite=True)

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        temporary = self.path / f"{name}.tmp"
        temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.path / name)  # whole or not at all


def _as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """The same with paths as strings and NumPy's numbers as Python's, as it comes back from a file."""

    def convert(value: Any) -> Any:
        if isinstance(value, Path):
            return str(value)
        return value.item() if isinstance(value, np.generic) else value

    return json.loads(json.dumps({name: convert(value) for name, value in content.items()}))
