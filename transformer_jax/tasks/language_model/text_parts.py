"""A text as bytes, in memory or in a mapped file, and its parts for training, validation and test."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int, UInt8

from transformer_jax.errors import InputError
from transformer_jax.tasks.language_model.docstrings import SEPARATOR, library_docstrings
from transformer_jax.tasks.mapped_file import MappedFile

HELD_OUT = 0.05  # of the text for validation, and as much for the test
MAX_HELD_OUT = 2**20  # bytes of each of the two
MAX_FILE_BYTES = 2**44
BLOCK_BYTES = 2**24  # that are read at once where all are read

Source: TypeAlias = bytes | MappedFile


class TextPart:
    """Neighbouring bytes of a text; those of a file are read when they are asked for.

    Args:
        source: the whole text.
        start: number of the part's first byte in it.
        stop: number of the first byte behind the part.
    """

    dtype = np.dtype(np.uint8)

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self.source, self.start, self.stop = source, start, stop
        self.shape = (stop - start,)

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, part: slice) -> bytes:
        """A copy of some neighbouring bytes.

        Raises:
            InputError: `part` is no slice, or one with a step other than 1.
        """
        if not isinstance(part, slice) or part.step not in (None, 1):
            raise InputError(f"part is {part!r}; it must be a slice of neighbouring bytes, [start:stop]")
        start, stop, _ = part.indices(len(self))
        return self.source[self.start + start : self.start + max(start, stop)]

    def windows(self, starts: Int[np.ndarray, " N"], length: int) -> UInt8[np.ndarray, "N {length}"]:
        """A copy of the bytes from each start on."""
        return np.stack([np.frombuffer(self[start : start + length], self.dtype) for start in starts.tolist()])

    def blocks(self) -> Iterator[UInt8[np.ndarray, " _"]]:
        """All bytes, some at a time."""
        for start in range(0, len(self), BLOCK_BYTES):
            yield np.frombuffer(self[start : start + BLOCK_BYTES], self.dtype)


class TextSplits(NamedTuple):
    """Parts of one text, in this order."""

    train: TextPart
    val: TextPart
    test: TextPart

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
    if path is None:
        documents = [(text + SEPARATOR).encode(errors="replace") for text in library_docstrings()]
        source: Source = b"".join(documents)
        ends = np.cumsum([len(document) for document in documents])
    else:
        source, ends = MappedFile(path, MAX_FILE_BYTES), None
    name = "the text" if path is None else str(path)
    return split_text(source, min_held_out, ends, name)


def split_text(
    source: Source, min_held_out: int, ends: Int[np.ndarray, " N"] | None = None, name: str = "the text"
) -> TextSplits:
    """A text's parts; `load_text` describes them.

    Args:
        source: the text.
        min_held_out: bytes that validation and test must have at least.
        ends: of the documents, at which it may be cut; None for anywhere.
        name: of the text, for messages.

    Raises:
        InputError: a part is too short.
    """
    size = len(source)
    held_out = min(int(HELD_OUT * size), MAX_HELD_OUT)
    cuts: Sequence[int] = [size - 2 * held_out, size - held_out]
    if ends is not None:
        cuts = [int(ends[np.searchsorted(ends, cut)]) for cut in cuts]
    parts = TextSplits(*(TextPart(source, *bounds) for bounds in zip([0, *cuts], [*cuts, size], strict=True)))
    shortest = min(parts.sizes(), key=parts.sizes().__getitem__)
    if parts.sizes()[shortest] < min_held_out:
        raise InputError(
            f"{name} has {size} bytes, of which {parts.sizes()[shortest]} are for {shortest}; each part must have at "
            f"least seq_len, {min_held_out}"
        )
    return parts
