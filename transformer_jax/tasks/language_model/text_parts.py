"""A text as bytes, and its parts for training, validation and test."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file
from transformer_jax.tasks.language_model.docstrings import SEPARATOR, library_docstrings

HELD_OUT = 0.05  # of the text for validation, and as much for the test
MAX_HELD_OUT = 2**20  # bytes of each of the two
MAX_FILE_BYTES = 2**36

Text = UInt8[np.ndarray, " _"]


class TextSplits(NamedTuple):
    """Parts of one text, in this order."""

    train: Text
    val: Text
    test: Text

    def sizes(self) -> dict[str, int]:
        """Bytes of each part."""
        return {name: len(part) for name, part in self._asdict().items()}


def load_text(path: Path | None, min_held_out: int) -> TextSplits:
    """The parts of a file, or without one of the standard library's docstrings.

    The first 90 % are for training, then come validation and test with 5 % each, at most `MAX_HELD_OUT`. No docstring
    is in two parts; a file is cut between any two bytes.

    Args:
        path: of a file of anything; None for the docstrings.
        min_held_out: bytes that validation and test must have at least.

    Raises:
        InputError: the file cannot be read, is no regular file, or too short.
    """
    if path is not None:
        with outside_file(path, "a text", MAX_FILE_BYTES) as file:
            text = np.fromfile(file, np.uint8)
        return split_text(text, min_held_out, name=str(path))
    documents = [(text + SEPARATOR).encode(errors="replace") for text in library_docstrings()]
    ends = np.cumsum([len(document) for document in documents])
    return split_text(np.frombuffer(b"".join(documents), np.uint8), min_held_out, ends)


def split_text(
    text: Text, min_held_out: int, ends: Int[np.ndarray, " N_ends"] | None = None, name: str = "the text"
) -> TextSplits:
    """A text's parts; `load_text` describes them.

    Args:
        text: the whole text.
        min_held_out: bytes that validation and test must have at least.
        ends: of the documents, at which it may be cut; None for anywhere.
        name: of the text, for messages.

    Raises:
        InputError: a part is too short.
    """
    size = len(text)
    held_out = min(int(HELD_OUT * size), MAX_HELD_OUT)
    cuts: Sequence[int] = [size - 2 * held_out, size - held_out]
    if ends is not None:
        cuts = [int(ends[np.searchsorted(ends, cut)]) for cut in cuts]
    parts = TextSplits(*np.split(text, cuts))
    sizes = parts.sizes()
    shortest = min(sizes, key=sizes.__getitem__)
    if sizes[shortest] < min_held_out:
        raise InputError(
            f"{name} has {size} bytes, of which {sizes[shortest]} are for {shortest}; each part must have at "
            f"least seq_len, {min_held_out}"
        )
    return parts


def windows(text: Text, starts: Int[np.ndarray, " B"], length: int) -> UInt8[np.ndarray, "B {length}"]:
    """A copy of the bytes of a text from each start on."""
    taken: UInt8[np.ndarray, "B {length}"] = np.lib.stride_tricks.sliding_window_view(text, length)[starts]
    return taken
