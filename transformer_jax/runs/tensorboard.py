"""TensorBoard events of a run; a resumed run continues its curves without gaps or doubles."""

import itertools
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary import Writer

from transformer_jax.runs.event_records import read_records, write_records

PATTERN = "events.out.tfevents.*"
SET_ASIDE = "events.out.damaged.*", "events.out.tmp.*"


class EventLog:
    """Writes scalars into a run's directory, after cutting its event files back to the step of the resumed checkpoint.

    Args:
        directory: of the run.
        last_step: the checkpoint's step; events of later steps are removed.
        last_evaluation: the last step whose evaluation the checkpoint knows; events named `val/…` of later steps are
            removed. It may be before `last_step`: an evaluation is logged before it is saved.
        earlier_files: `files` when the checkpoint was saved; a warning names those that are missing or shorter.
    """

    def __init__(
        self, directory: Path, last_step: int, last_evaluation: int, earlier_files: Mapping[str, int] | None = None
    ) -> None:
        self._directory = directory
        files = self.files
        if short := sorted(name for name, size in (earlier_files or {}).items() if files.get(name, 0) < size):
            warnings.warn(f"{directory} has lost a part of its curves: {', '.join(short)}", stacklevel=3)
        for file in sorted(directory.glob(PATTERN)):
            _cut(file, last_step, last_evaluation)
        self._writer = Writer(str(directory))

    @property
    def files(self) -> dict[str, int]:
        """Names of the run's event files, of this process and of those before it, and their sizes in bytes."""
        return {file.name: file.stat().st_size for file in self._directory.glob(PATTERN)}

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars as they are after `step` steps."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Wait until everything is on disk."""
        self._writer.flush()

    def __enter__(self) -> "EventLog":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Wait until everything is on disk, and end the thread that writes."""
        self._writer.close()


def _cut(file: Path, last_step: int, last_evaluation: int) -> None:
    """Keep a file's events up to these steps. A damaged file is set aside, and what can be read of it is kept."""

    def is_kept(record: bytes) -> bool:
        try:
            event = Event.FromString(record)
        except DecodeError:  # its checksum is right, yet it is none of ours
            return False
        evaluates = any(value.tag.startswith("val/") for value in event.summary.value)
        return bool(event.step <= (last_evaluation if evaluates else last_step))

    records = read_records(file.read_bytes())
    kept = [record for record in records.data if is_kept(record)]
    if records.num_damaged:
        name = file.name.replace("tfevents", "damaged")
        names = (file.with_name(f"{name}.{number}") for number in itertools.count(1))
        aside = next(unused for unused in names if not unused.exists())
        warnings.warn(
            f"{file} is damaged; what can be read of its curves is kept, the file itself is now {aside.name}",
            stacklevel=3,
        )
        shutil.copyfile(file, aside)
    if records.num_damaged or records.is_cut_off or len(kept) < len(records.data):
        write_records(file, kept)
