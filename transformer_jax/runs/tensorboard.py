"""TensorBoard events of a run, which can go on from a step without gaps or doubles."""

from collections.abc import Mapping
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary import Writer
from tensorboard.summary.writer.record_writer import RecordWriter

PATTERN = "events.out.tfevents.*"


class EventLog:
    """Writes scalars into a directory, which is first cut back to what a run that goes on has already done.

    Args:
        directory: of the run.
        last_step: what was logged of later steps is removed,
        last_evaluation: and of later evaluations too: one may have been logged, but not saved, at the last step.
    """

    def __init__(self, directory: Path, last_step: int, last_evaluation: int) -> None:
        for file in sorted(directory.glob(PATTERN)):
            _cut(file, last_step, last_evaluation)
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


def _cut(file: Path, last_step: int, last_evaluation: int) -> None:
    """Keep a file's events up to these steps; a record that was cut off by a kill ends the file."""

    def is_done(event: Event) -> bool:
        evaluates = any(value.tag.startswith("val/") for value in event.summary.value)
        return event.step <= (last_evaluation if evaluates else last_step)

    records = [record for record in RawEventFileLoader(str(file)).Load() if is_done(Event.FromString(record))]
    temporary = file.with_name("cut." + file.name)
    with temporary.open("wb") as stream:
        writer = RecordWriter(stream)
        for record in records:
            writer.write(record)
    temporary.replace(file)
