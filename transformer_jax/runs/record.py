"""The record of a checkpoint: all that is saved beside the arrays, as JSON, under a digest of its own."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.runs.settings import FORMAT, Json, check_format, read_json, write_json

RECORD = Path("record", "metadata")  # inside the directory of a checkpoint


class Record(NamedTuple):
    """Metrics, progress and origin of a checkpoint, and digests of its arrays."""

    metrics: dict[str, float] | None  # of the evaluation at its step, None if there was none
    progress: Json  # the loop needs it to resume the run
    origin: Json  # settings and data of the run
    files: dict[str, str] | None = None  # SHA-256 of each of Orbax's files, by path
    state: str | None = None  # in format 4, in place of `files`: `digest_of_arrays`

    def write(self, checkpoint: Path, step: int) -> None:
        """Write it into the directory of a checkpoint, with the digest of all of it and of the step."""
        content: Json = json.loads(json.dumps({"format": FORMAT, **self._asdict()}))  # keys become strings
        (checkpoint / RECORD).parent.mkdir(exist_ok=True)
        write_json(checkpoint / RECORD, {**content, "digest": _digest(step, content)})

    @classmethod
    def read(cls, checkpoint: Path) -> "Record":
        """Read it from the directory of a checkpoint, whose name is the step.

        Raises:
            FormatError: it is of another format.
            InputError: it is missing, can't be read, or does not agree with its digest.
        """
        content, step = read_json(checkpoint / RECORD), int(checkpoint.name)
        check_format(f"the checkpoint of step {step} in {checkpoint.parent}", content)
        if content.pop("digest", None) != _digest(step, content):
            raise InputError("its record does not agree with its digest")
        found: Json = {field: content.get(field) for field in cls._fields}
        return cls(**found)


def best_step(values: Mapping[int, float], criterion: Criterion) -> int | None:
    """The step of the best value, of equal ones the later; None if all are NaN.

    Args:
        values: the criterion's metric by step, NaN where a checkpoint was not evaluated.
        criterion: which of two values is better.
    """
    best, best_value = None, math.nan
    for step in sorted(values):
        if criterion.is_better(values[step], best_value):
            best, best_value = step, values[step]
    return best


def _digest(step: int, content: Json) -> str:
    return hashlib.sha256(json.dumps([step, content], sort_keys=True).encode()).hexdigest()
