"""Loggers of a run's curves, pictures and settings, such as `CsvLogger` and `TensorBoardLogger`."""

import contextlib
import csv
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from jaxtyping import UInt8

from transformer_jax.argument_checks import check_arguments
from transformer_jax.devices.processes import is_first
from transformer_jax.errors import level_of_user
from transformer_jax.outside_files import Content
from transformer_jax.runs.own_files import no_link

Scalars: TypeAlias = Mapping[str, float]  # by name
CURVES = "metrics.csv"
EVENTS = "events.out.tfevents.*"  # TensorBoard's files


class LogPosition(NamedTuple):
    """Position from which a run resumes; later entries are those of a killed process, and will be logged again."""

    step: int = 0  # step of the checkpoint, 0 if there is none
    # by class, each logger's `state` at the checkpoint; JSON
    states: Mapping[str, Any] = MappingProxyType({})


class Logger:
    """Base class of loggers: a run calls these methods, which do nothing by default."""

    def log(self, step: int, scalars: Scalars) -> None:
        """Log scalars after `step` steps, by name: `train/loss`, `val/accuracy`, `test/accuracy`."""

    def log_image(self, step: int, name: str, image: UInt8[np.ndarray, "height width"]) -> None:
        """Log a grey picture after `step` steps."""

    def log_settings(self, settings: Content) -> None:
        """Log the settings of the run, when it begins and whenever it is resumed."""

    def log_results(self, metrics: Scalars) -> None:
        """Log the metrics at the end: `val/accuracy`, `test/accuracy`."""

    def state(self) -> Any:  # JSON
        """State from which a resumed run continues; it is saved in each checkpoint."""
        return None

    def flush(self) -> None:
        """Wait until everything is on disk."""

    def close(self) -> None:
        """Wait until everything is on disk, and release files and threads."""


def cut_back(files: Iterable[Path], sizes: Mapping[str, int] | None, position: LogPosition) -> None:
    """Truncate files of an earlier process to their sizes at the checkpoint, and remove files that are newer.

    A warning names files that are missing or shorter.

    Args:
        files: the logger's files that exist.
        sizes: sizes in bytes by file name; None if the checkpoint does not have them, and the files stay unchanged.
        position: position from which the run resumes; before the first checkpoint, all files are removed.
    """
    if sizes is None and position.step > 0:
        return
    lost = dict(sizes or {})  # sizes of the files, until they are found whole
    for file in files:
        size = lost.get(file.name)
        if size is None:  # it was not there at the checkpoint
            file.unlink()
        elif file.stat().st_size >= size:
            with open(file, "r+b", opener=no_link) as stream:
                stream.truncate(size)
            del lost[file.name]
    if lost:
        warnings.warn(
            f"log files are missing or truncated: {', '.join(sorted(lost))}",
            stacklevel=level_of_user(),
        )


class CsvLogger(Logger):
    """Writes `metrics.csv` with the columns step, name and value, after truncating it to the checkpoint's position.

    `pandas.read_csv(file).pivot(index="step", columns="name", values="value")` turns each curve into a column.

    Args:
        directory: directory of the run.
        position: position from which the run resumes.
    """

    @check_arguments
    # it is immutable
    def __init__(self, directory: Path | str, position: LogPosition = LogPosition()) -> None:  # noqa: B008
        self._file = Path(directory) / CURVES
        size = position.states.get(type(self).__name__)
        sizes = None if size is None else {CURVES: size}
        cut_back(self._file.parent.glob(CURVES), sizes, position)
        # see `close`
        self._stream = open(self._file, "a", newline="", encoding="utf-8", opener=no_link)  # noqa: SIM115
        self._writer = csv.writer(self._stream, lineterminator="\n")
        if not self.state():
            self._writer.writerow(("step", "name", "value"))

    def log(self, step: int, scalars: Scalars) -> None:
        """Add a line for each scalar."""
        self._writer.writerows((step, name, value) for name, value in scalars.items())

    def state(self) -> int:
        """Size of the file in bytes."""
        return self._file.stat().st_size

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def tensorboard_logger(directory: Path, position: LogPosition) -> Logger:
    """Create a `TensorBoardLogger`; only this imports the library."""
    from transformer_jax.runs.tensorboard import TensorBoardLogger

    return TensorBoardLogger(directory, position)


@contextlib.contextmanager
def open_loggers(
    create: Callable[[Path, LogPosition], Sequence[Logger]],
    directory: Path,
    position: LogPosition,
    settings: Content,
) -> Iterator[Sequence[Logger]]:
    """Create the loggers of a run, only in the first process, and log its settings; the block's end closes them."""
    with contextlib.ExitStack() as opened:
        loggers = create(directory, position) if is_first() else []
        for logger in loggers:
            opened.callback(logger.close)
        for logger in loggers:
            logger.log_settings(settings)
        yield loggers
