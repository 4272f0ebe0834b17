"""The number of the format in which a run is written, and the error for a run of another format."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import InputError

# Of config.json and of the checkpoints. Raise it by one with every change after which older files would be misread.
FORMAT = 4
UNNUMBERED = 1  # the format of files without a number, which were written before there were numbers


class FormatError(InputError):
    """A run's file is intact, but of a format that this version does not read."""


def check_format(name: str, content: Mapping[str, Any]) -> None:
    """Raise a `FormatError` unless the JSON object `content` carries the number of the present format.

    Args:
        name: of the file or checkpoint, for the message.
        content: its JSON object.
    """
    number = content.get("format", UNNUMBERED)
    if number != FORMAT:
        raise FormatError(f"{name} is of format {number}, this version reads {FORMAT}")
