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
    array = np.asarray(ids, np.int64)
    names = {PAD: "pad", START: "start", END: "end"}
    is_byte = array < PAD
    try:
        text = array[is_byte].astype(np.uint8).tobytes().decode()
        characters = iter(
            "".join(character + "·" * (len(character.encode()) - 1) for character in text)
        )
        return [next(characters) if number < PAD else names[number] for number in array.tolist()]
    except UnicodeDecodeError:
        return [
            names.get(number) or (chr(number) if number < 128 else f"{number:02X}")
            for number in array.tolist()
        ]


def pad(sequences: Sequence[Ids], length: int, filler: int = PAD) -> Int[np.ndarray, "B {length}"]:
    """Pad sequences of ids, none longer than `length`, to the rows of one array."""
    padded = np.full((len(sequences), length), filler, np.int32)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(ids)] = ids
    return padded
