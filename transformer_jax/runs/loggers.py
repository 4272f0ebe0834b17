"""Loggers: where a run's curves, pictures and settings go. `CsvLogger` is one, `TensorBoardLogger` another."""

import csv
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8

from transformer_jax.argument_checks import check_arguments
from transformer_jax.runs.own_files import no_link

CURVES = "metrics.csv"
EVENTS = "events.out.tfevents.*"  # TensorBoard's files


class LogPosition(NamedTuple):
    """Where a run goes on; entries after it are those of a process that was killed, and will come again."""

    step: int = 0  # of the checkpoint, 0 where there is none
    states: Mapping[str, Any] = MappingProxyType({})  # by class, each logger's `state` at the checkpoint; JSON


class Logger:
    """Gets what a run logs. A method that is not overridden does nothing."""

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Scalars after `step` steps, by name: `train/loss`, `val/accuracy`, `test/accuracy`."""

    def log_image(self, step: int, name: str, image: UInt8[np.ndarray, "height width"]) -> None:
        """A grey picture, as it is after `step` steps."""

    def log_settings(self, settings: Mapping[str, object]) -> None:
        """The settings of the run, at its beginning and whenever it goes on."""

    def log_results(self, metrics: Mapping[str, float]) -> None:
        """The metrics at the end: `val/accuracy`, `test/accuracy`."""

    def state(self) -> Any:  # JSON
        """State with which the logger goes on in another process; it is saved in each checkpoint."""
        return None

    def flush(self) -> None:
        """Wait until everything is on disk."""

    def close(self) -> None:
        """Wait until everything is on disk, and let go of files and threads."""


def cut_back(files: Iterable[Path], sizes: Mapping[str, int] | None, position: LogPosition) -> None:
    """Cut files of an earlier process back to the sizes that they had at the checkpoint, and remove later ones.

    A file that is missing or shorter is named in a warning.

    Args:
        files: of a logger, those that are there.
        sizes: in bytes by name; None where the checkpoint knows of none, and they stay as they are.
        position: at which the run goes on; before the first checkpoint all files are removed.
    """
    if sizes is None and position.step > 0:
        return
    kept, found = sizes or {}, {file.name: file for file in files}
    for name, file in found.items():
        if name not in kept:
            file.unlink()
        elif file.stat().st_size > kept[name]:
            with open(file, "r+b", opener=no_link) as stream:
                stream.truncate(kept[name])
    lost = [name for name in kept if name not in found or found[name].stat().st_size < kept[name]]
    if lost:
        warnings.warn(f"a part of the curves is lost: {', '.join(sorted(lost))}", stacklevel=4)


class CsvLogger(Logger):
    """Writes `metrics.csv`, after cutting it back to the checkpoint's position: the columns step, name and value.

    `pandas.read_csv(file).pivot(index="step", columns="name", values="value")` makes a column of each curve.

    Args:
        directory: of the run.
        position: at which the run goes on.
    """

    @check_arguments
    def __init__(self, directory: Path | str, position: LogPosition = LogPosition()) -> None:  # noqa: B008  # it is immutable
        self._file = Path(directory) / CURVES
        size = position.states.get(type(self).__name__)
        cut_back(self._file.parent.glob(CURVES), None if size is None else {CURVES: size}, position)
        self._stream = open(self._file, "a", newline="", encoding="utf-8", opener=no_link)  # noqa: SIM115  # see `close`
        self._writer = csv.writer(self._stream, lineterminator="\n")
        if not self.state():
            self._writer.writerow(("step", "name", "value"))

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add a line for each scalar."""
        self._writer.writerows((step, name, value) for name, value in scalars.items())

    def state(self) -> int:
        """Bytes of the file."""
        return self._file.stat().st_size

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def tensorboard_logger(directory: Path, position: LogPosition) -> Logger:
    """A `TensorBoardLogger`, whose library is imported when it is made."""
    from transformer_jax.runs.tensorboard import TensorBoardLogger

    return TensorBoardLogger(directory, position)
