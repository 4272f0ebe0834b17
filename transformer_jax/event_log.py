"""TensorBoard events of a run, which can go on from a step without gaps or doubles."""

from collections.abc import Mapping
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary import Writer
from tensorboard.summary.writer.record_writer import RecordWriter

PATTERN = "events.out.tfevents.*"


class EventLog:
    """Writes scalars into a directory; what it holds of later steps than `last_step` is removed first."""

    def __init__(self, directory: Path, last_step: int) -> None:
        for file in sorted(directory.glob(PATTERN)):
            _cut(file, last_step)
        self._writer = Writer(str(directory))

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars as they are after `step` steps."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Have everything on disk."""
        self._writer.flush()

    def close(self) -> None:
        """Finish writing."""
        self._writer.close()


def _cut(file: Path, last_step: int) -> None:
    """Keep a file's events up to a step; a record that was cut off by a kill ends the file."""
    records = [record for record in RawEventFileLoader(str(file)).Load() if Event.FromString(record).step <= last_step]
    temporary = file.with_name("cut." + file.name)
    with temporary.open("wb") as stream:
        writer = RecordWriter(stream)
        for record in records:
            writer.write(record)
    temporary.replace(file)
