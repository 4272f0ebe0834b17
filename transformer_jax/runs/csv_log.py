"""A run's curves as a CSV file, one value a line, for pandas or a spreadsheet."""

import csv
from collections.abc import Mapping
from pathlib import Path

from transformer_jax.runs.loggers import Logger, LogPosition, cut_back

FILE = "metrics.csv"
HEADER = ("step", "name", "value")


class CsvLogger(Logger):
    """Writes `metrics.csv` with the columns step, name and value, after cutting it back to the checkpoint's position.

    `pandas.read_csv(file).pivot(index="step", columns="name", values="value")` makes a column of each curve.

    Args:
        directory: of the run.
        position: at which the run goes on.
    """

    def __init__(self, directory: Path, position: LogPosition = LogPosition()) -> None:  # noqa: B008  # it is immutable
        self._file = directory / FILE
        size = position.states.get(type(self).__name__)
        cut_back(directory.glob(FILE), None if size is None else {FILE: size}, position)
        self._stream = self._file.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._stream, lineterminator="\n")
        if not self.state():
            self._writer.writerow(HEADER)

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
