"""The record of a checkpoint: all that is saved beside the arrays, as JSON, under a digest of its own."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.runs.format import FORMAT, check_format

RECORD = "record"  # its directory inside a checkpoint's
RECORD_FILE = "metadata"  # inside it, as Orbax names it

Json = dict[str, Any]


class Record(NamedTuple):
    """Metrics, progress, origin and digest of a checkpoint."""

    metrics: Json | None  # of the evaluation at its step, None if there was none
    progress: Json  # the loop needs it to resume the run
    origin: Json  # settings and data of the run
    state: str  # digest of the arrays

    def to_json(self, step: int) -> Json:
        """The content of the file, with the digest of all of it and of the step that it belongs to."""
        content: Json = json.loads(json.dumps({"format": FORMAT, **self._asdict()}))  # keys become strings
        return {**content, "digest": _digest(step, content)}

    @classmethod
    def from_json(cls, step: int, content: Mapping[str, Any], name: str) -> "Record":
        """Read what `to_json` gave for the same step.

        Args:
            step: of the checkpoint.
            content: of the file.
            name: of the checkpoint, for messages.

        Raises:
            FormatError: it is of another format.
            ValueError: it does not agree with its digest.
        """
        content = dict(content)
        check_format(name, content)
        if content.pop("digest", None) != _digest(step, content):
            raise ValueError("its record does not agree with its digest")
        return cls(**{field: content[field] for field in cls._fields})


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    temporary = file.with_name(f"{file.name}.tmp")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(content, indent=2) + "\n")
        stream.flush()
        os.fsync(stream.fileno())  # else a power loss may leave the new name with no content
    temporary.replace(file)


def _digest(step: int, content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps([step, content], sort_keys=True).encode()).hexdigest()
