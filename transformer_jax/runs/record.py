"""The records of checkpoints: everything saved besides the arrays, as JSON with its own digest."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.outside_files import Json, as_input_error, read_json
from transformer_jax.runs.own_files import digest_of
from transformer_jax.runs.settings import FORMAT, FormatError, check_format, write_json

RECORD = Path("record", "metadata")  # inside the directory of a checkpoint
STATE = "state"  # Orbax's files, beside the record

T = TypeVar("T")


class DamagedError(InputError):
    """A checkpoint can't be read."""


class Record(NamedTuple):
    """Metrics, progress and origin of a checkpoint, and digests of its arrays."""

    metrics: dict[str, float] | None  # of the evaluation at its step, None if there was none
    progress: Json  # what the loop needs to resume the run
    origin: Json  # settings and data of the run
    files: dict[str, str] | None = None  # SHA-256 of each of Orbax's files, by path
    state: str | None = None  # `digest_of_arrays`, instead of `files` in format 4

    def value(self, metric: str) -> float:
        """A metric of the evaluation, NaN if there was none."""
        return (self.metrics or {}).get(metric, math.nan)

    def write(self, checkpoint: Path, step: int) -> None:
        """Write the record into a checkpoint's directory, with a digest of its content and of the step."""
        # The digest is of the content as JSON gives it back, e.g. with strings for all keys.
        content: Json = json.loads(json.dumps({"format": FORMAT, **self._asdict()}))
        (checkpoint / RECORD).parent.mkdir(exist_ok=True)
        write_json(checkpoint / RECORD, {**content, "digest": _digest(step, content)})

    @classmethod
    def read(cls, checkpoint: Path) -> "Record":
        """Read the record from a checkpoint's directory, whose name is the step.

        Raises:
            FormatError: it is of another format.
            InputError: it is missing, can't be read, or does not match its digest.
        """
        content = read_json(checkpoint / RECORD)
        step = int(checkpoint.name)
        check_format(f"the checkpoint of step {step} in {checkpoint.parent}", content)
        if content.pop("digest", None) != _digest(step, content):
            raise InputError("its record does not match its digest")
        fields: Json = {field: content.get(field) for field in cls._fields}
        return cls(**fields)


class Records:
    """The records of a run's checkpoints, without the damaged ones.

    Args:
        directory: directory of the checkpoints.
        warn: called once for each damaged checkpoint, with a line.

    Attributes:
        damaged: steps of the damaged checkpoints found so far.
    """

    def __init__(self, directory: Path, warn: Callable[[str], object]) -> None:
        self.directory = directory
        self._warn = warn
        self.damaged: set[int] = set()

    def steps(self) -> list[int]:
        """The steps with a checkpoint, damaged or not, ascending.

        Raises:
            InputError: the directory can't be read.
        """
        with as_input_error(f"{self.directory} can't be read", OSError):
            paths = self.directory.iterdir() if self.directory.is_dir() else ()
            return sorted(int(path.name) for path in paths if path.name.isdecimal())

    def path(self, step: int) -> Path:
        """The directory of a checkpoint."""
        return self.directory / str(step)

    def read(self, step: int, *, check_files: bool = False) -> Record:
        """Read the record of a step; with `check_files`, compare all files with their digests.

        Raises:
            DamagedError: the record is missing, or the record or a file is damaged.
            InputError: it is of another format, or can't be read now.
        """
        try:
            record = Record.read(self.path(step))
        except InputError as error:
            if isinstance(error, FormatError) or may_be_gone(error.__cause__):
                raise
            raise self.damage(step, error) from None
        if check_files and record.files is not None:
            try:
                digests = digests_of_files(self.path(step) / STATE)
            except FileNotFoundError:  # the training process is deleting it
                digests = {}
            if record.files != digests:
                raise self.damage(step, "its files do not match their digests")
        return record

    def all(self) -> dict[int, Record]:
        """The intact records by step.

        Raises:
            InputError: one is of another format, or can't be read now.
        """
        intact = {}
        for step in self.steps():
            if step not in self.damaged:
                record = self.unless_damaged(step, self.read)
                if record is not None:
                    intact[step] = record
        return intact

    def unless_damaged(self, step: int, read: Callable[[int], T]) -> T | None:
        """Return the result of `read` for a step; None if the checkpoint is damaged, which is remembered.

        Raises:
            InputError: it is of another format, or can't be read now.
        """
        sentence = f"the checkpoint of step {step} in {self.directory} can't be read"
        try:
            with as_input_error(sentence, OSError):
                return read(step)
        except DamagedError as error:
            # Else the training process has deleted it meanwhile.
            if self.path(step).exists() and step not in self.damaged:
                self.damaged.add(step)
                self._warn(str(error))
            return None

    def prepare(self) -> None:
        """Create the directory, and remove checkpoints that are half written or half deleted."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for half in half_written(self.directory):
            shutil.rmtree(half)

    def renew(self, step: int, record: Record) -> bool:
        """Give the checkpoint of this step a new record; return False if it is missing or damaged.

        Deletes checkpoints of later steps, which were skipped as damaged when the run was resumed.
        """
        old = self.all().get(step)
        self.prepare()  # an earlier save may have failed
        first_deleted = step if old is None else step + 1
        for saved in self.steps():
            if saved >= first_deleted:
                self.delete(saved)
        if old is None:
            return False
        renewed = record._replace(files=old.files, state=old.state)
        renewed.write(self.path(step), step)
        return True

    def delete(self, step: int) -> None:
        """Delete the checkpoint of a step."""
        # Renamed first, so that neither a reader nor a crash leaves half of it under its name.
        renamed = self.path(step).rename(self.directory / f"deleted{half_suffix()}")
        shutil.rmtree(renamed)
        self.damaged.discard(step)

    def damage(self, step: int, reason: object) -> DamagedError:
        """Return the error for a checkpoint that can't be read."""
        line = str(reason).split("\n")[0][:200]
        return DamagedError(
            f"the checkpoint of step {step} in {self.directory} can't be read: {line}"
        )


def half_suffix() -> str:
    """Suffix by which Orbax marks an unfinished directory; it also marks one that is being deleted."""
    # takes a second, which the list of runs avoids
    from orbax.checkpoint.utils import TMP_DIR_SUFFIX

    return str(TMP_DIR_SUFFIX)


def half_written(directory: Path, name: str = "*") -> list[Path]:
    """Directories of this name that Orbax has not finished, or that are being deleted."""
    return [*directory.glob(f"{name}{half_suffix()}*")]


def may_be_gone(error: BaseException | None) -> bool:
    """Whether an error may be transient rather than damage, since damaged checkpoints are deleted in the end."""
    return isinstance(error, OSError | MemoryError) and not isinstance(error, FileNotFoundError)


def digests_of_files(directory: Path) -> dict[str, str]:
    """SHA-256 of each file below a directory, by its path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): digest_of(path) for path in files}


def best_step(values: Mapping[int, float], criterion: Criterion) -> int | None:
    """Return the step of the best value, the latest if several are equal; None if all are NaN.

    Args:
        values: the criterion's metric by step, NaN if the checkpoint was not evaluated.
        criterion: decides which of two values is better.
    """
    best = None
    best_value = math.nan
    for step in sorted(values):
        if criterion.is_better(values[step], best_value):
            best = step
            best_value = values[step]
    return best


def _digest(step: int, content: Json) -> str:
    return hashlib.sha256(json.dumps([step, content], sort_keys=True).encode()).hexdigest()
