"""A run's curves as a CSV file, one value a line, for pandas or a spreadsheet."""

import csv
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from transformer_jax.runs.loggers import Logger, Position

FILE = "metrics.csv"
HEADER = ("step", "name", "value")


class CsvLogger(Logger):
    """Writes `metrics.csv` with the columns step, name and value, after cutting it back to the checkpoint's position.

    `pandas.read_csv(file).pivot(index="step", columns="name", values="value")` makes a column of each curve.

    Args:
        directory: of the run.
        position: at which the run goes on.
    """

    def __init__(self, directory: Path, position: Position = Position()) -> None:  # noqa: B008  # it is immutable
        self._file = directory / FILE
        earlier = position.states.get(type(self).__name__) or 0
        if earlier > (self._file.stat().st_size if self._file.exists() else 0):
            warnings.warn(f"{directory} has lost a part of its curves: {FILE}", stacklevel=3)
        temporary = self._file.with_suffix(".tmp")
        with temporary.open("w", newline="", encoding="utf-8") as stream:
            _write(stream, [HEADER, *_kept(self._file, position)])
        temporary.replace(self._file)
        self._stream = self._file.open("a", newline="", encoding="utf-8")

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Add a line for each scalar."""
        _write(self._stream, [(step, name, value) for name, value in scalars.items()])

    def state(self) -> int:
        """Bytes of the file."""
        return self._file.stat().st_size

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def _kept(file: Path, position: Position) -> Iterable[tuple[int, str, str]]:
    """The readable lines of an earlier process up to this position."""
    if not file.exists():
        return
    with file.open(newline="", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            try:
                row = next(csv.reader([line]), [])
            except csv.Error:  # the line was damaged
                continue
            if line.endswith("\n") and len(row) == len(HEADER) and row[0].isascii() and row[0].isdigit():
                step, name, value = int(row[0]), row[1], row[2]
                if position.keeps(name, step):
                    yield step, name, value


def _write(stream: TextIO, rows: Iterable[Iterable[object]]) -> None:
    csv.writer(stream, lineterminator="\n").writerows(rows)
