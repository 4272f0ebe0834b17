"""Text as UTF-8 bytes: no vocabulary file, any language, nothing out of vocabulary."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Int, Integer

from transformer_jax.errors import InputError

Ids: TypeAlias = Int[np.ndarray, " _"]  # of the tokens of a text

# The ids below 256 are the bytes themselves.
PAD = 256
START = 257
END = 258
NAMES = {PAD: "pad", START: "start", END: "end"}


def encode(text: str | bytes) -> Ids:
    """Ids of a text's UTF-8 bytes, or of bytes.

    Raises:
        InputError: the text has a lone surrogate.
    """
    try:
        content = text if isinstance(text, bytes) else text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text {text!r} has characters that cannot be written as UTF-8: {error}"
        ) from None
    return np.frombuffer(content, np.uint8).astype(np.int32)


def labels(ids: Sequence[int] | Integer[np.ndarray, " T"]) -> list[str]:
    """A label for each id: its character if the bytes are valid UTF-8, else an ASCII character or a hexadecimal number.

    A character of several bytes is the label of the first byte; the others get a dot.
    """
    numbers = np.asarray(ids).tolist()
    content = bytes(number for number in numbers if number < PAD)
    names: Sequence[str]  # one for each byte
    try:
        names = "".join(letter + "·" * (len(letter.encode()) - 1) for letter in content.decode())
    except UnicodeDecodeError:
        names = [chr(byte) if byte < 128 else f"{byte:02X}" for byte in content]
    names_of_bytes = iter(names)
    return [NAMES.get(number) or next(names_of_bytes) for number in numbers]


def pad(
    sequences: Sequence[Ids], length: int, filler: int = PAD, *, at_left: bool = False
) -> Int[np.ndarray, "B {length}"]:
    """Pad sequences of ids, none longer than `length`, to the rows of one array."""
    padded = np.full((len(sequences), length), filler, np.int32)
    for row, ids in zip(padded, sequences, strict=True):
        start = length - len(ids) if at_left else 0
        row[start : start + len(ids)] = ids
    return padded
