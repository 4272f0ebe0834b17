"""Text as UTF-8 bytes: no vocabulary file, any language, nothing out of vocabulary."""

from collections.abc import Sequence

import numpy as np
from jax import Array
from jaxtyping import Int, Integer

from transformer_jax.errors import InputError

# The ids below 256 are the bytes themselves.
PAD = 256
START = 257
END = 258
VOCABULARY_SIZE = 259


def encode(text: str, *, delimited: bool = False) -> Int[np.ndarray, " S"]:
    """Ids of a text's UTF-8 bytes; with `delimited`, START before them and END after them.

    Raises:
        InputError: the text holds half of a surrogate pair.
    """
    try:
        ids = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    except UnicodeEncodeError as error:
        raise InputError(
            f"the text {text!r} holds U+{ord(text[error.start]):04X} at position {error.start}, "
            "half of a surrogate pair, which cannot be written as UTF-8"
        ) from None
    return np.concatenate([[START], ids, [END]], dtype=np.int32) if delimited else ids


def decode(ids: Sequence[int] | Integer[np.ndarray | Array, " T"]) -> str:
    """Text before the first END. PAD and START are skipped; bytes that are not valid UTF-8 become U+FFFD.

    Raises:
        ValueError: an id is outside 0 … 258.
    """
    array = np.asarray(ids, np.int64)
    outside = array[(array < 0) | (array >= VOCABULARY_SIZE)]
    if outside.size:
        raise ValueError(f"ids hold {outside[0]}; they may be 0 … {VOCABULARY_SIZE - 1}")
    ends = np.flatnonzero(array == END)
    if ends.size:
        array = array[: ends[0]]
    return array[array < PAD].astype(np.uint8).tobytes().decode(errors="replace")


def characters(text: str) -> list[str]:
    """A label for each byte of a text: the character at its first byte, a dot at its other bytes."""
    return [label for character in text for label in (character, *"·" * (len(character.encode()) - 1))]


def labels(ids: Sequence[int] | Integer[np.ndarray, " T"]) -> list[str]:
    """A label for each id: its character if the bytes are a text, else ASCII characters and hexadecimal numbers."""
    array = np.asarray(ids, np.int64)
    names = {PAD: "pad", START: "start", END: "end"}
    is_byte = array < PAD
    try:
        text = iter(characters(array[is_byte].astype(np.uint8).tobytes().decode()))
        return [next(text) if number < PAD else names[number] for number in array.tolist()]
    except UnicodeDecodeError:
        return [names.get(number) or (chr(number) if number < 128 else f"{number:02X}") for number in array.tolist()]


def pad(sequences: Sequence[Int[np.ndarray, " _"]], length: int) -> Int[np.ndarray, "B {length}"]:
    """Sequences of ids as the rows of one array, padded with PAD.

    Raises:
        ValueError: a sequence is longer than `length`.
    """
    padded = np.full((len(sequences), length), PAD, np.int32)
    for row, ids in zip(padded, sequences, strict=True):
        if len(ids) > length:
            raise ValueError(f"a sequence has {len(ids)} ids; it may have at most length, {length}")
        row[: len(ids)] = ids
    return padded
