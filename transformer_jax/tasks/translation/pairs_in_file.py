"""Pairs of texts that stay in their file: an index says where each text lies, and a text is decoded when asked for."""

import codecs
import io
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import TypeAlias, overload

import numpy as np
from jaxtyping import Bool, Int

from transformer_jax.errors import InputError
from transformer_jax.tasks.data_files import file_size, read_data_file
from transformer_jax.tasks.mapped_file import MappedFile
from transformer_jax.tasks.translation.padded_pairs import Side, TextPair

MAX_FILE_BYTES = 2**40
MAX_LINE_BYTES = 2**20  # a longer line is no pair of sentences
MAX_HELD_BYTES = 2**26  # of a file that is read into memory, so that it may change afterwards; a larger one is mapped
MAX_COUNTED_BYTES = 2**31  # of a line that is too long
BLOCK_BYTES = 2**16  # that are read at once to find the end of the text

ENTRIES_AT_ONCE = 4096  # that are Python's numbers

Readable: TypeAlias = io.BufferedReader | io.BytesIO

# Of each pair: the first byte of the source, that of the target after it, the bytes of both, a digest of the source.
ENTRY = Struct("<qiii8s")
INDEX = np.dtype(
    [("source", "<i8"), ("target", "<i4"), ("source_bytes", "<i4"), ("target_bytes", "<i4"), ("digest", "<u8")]
)


class PairsInFile(Sequence[TextPair]):
    """Pairs of texts, as bytes of a file. In memory a pair takes the 28 bytes of its entry.

    Args:
        content: of the file, in memory or mapped.
        entries: `[N]`, of the type `INDEX`.
    """

    def __init__(self, content: bytes | MappedFile, entries: np.ndarray) -> None:
        self._content = content
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> TextPair: ...

    @overload
    def __getitem__(self, index: slice) -> "PairsInFile": ...

    def __getitem__(self, index: int | slice) -> "TextPair | PairsInFile":
        """A pair, or some of the pairs.

        Raises:
            InputError: the file was cut off or changed since.
        """
        if isinstance(index, slice):
            return PairsInFile(self._content, self.entries[index])
        start, to_target, *sizes, _ = self.entries[index].item()
        source, target = self._bytes(start, sizes[0]), self._bytes(start + to_target, sizes[1])
        try:
            return TextPair(source.decode(), target.decode())
        except UnicodeDecodeError:
            name = getattr(self._content, "path", "the file of pairs")  # bytes have none
            raise InputError(f"{name} was changed while it was read: pair {index} is not valid UTF-8 now") from None

    def take(self, which: Bool[np.ndarray, " N"]) -> "PairsInFile":
        """The pairs that a mask chooses."""
        return self if which.all() else PairsInFile(self._content, self.entries[which])

    def sizes(self) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """Bytes of each source and of each target."""
        return self.entries["source_bytes"], self.entries["target_bytes"]

    def texts(self, side: Side) -> Iterator[bytes]:
        """The sources one after another, or the targets."""
        for first in range(0, len(self), ENTRIES_AT_ONCE):
            for start, to_target, *sizes, _ in self.entries[first : first + ENTRIES_AT_ONCE].tolist():
                yield self._bytes(start, sizes[0]) if side == "source" else self._bytes(start + to_target, sizes[1])

    def _bytes(self, start: int, size: int) -> bytes:
        return self._content[start : start + size]


def read_pairs(path: Path) -> PairsInFile:
    """The first two columns of a UTF-8 file, without the white space around them.

    A byte order mark, Windows' line ends and blank lines at the end are ignored. Every line is looked at once; of a
    large file only the index stays in memory.

    Raises:
        InputError: the file cannot be read, is no regular file or too large; a line is not UTF-8, has no tab, a NUL or
            an empty side, or is too long.
    """
    path = Path(path)
    is_large = file_size(path, MAX_FILE_BYTES) > MAX_HELD_BYTES
    content = MappedFile(path, MAX_FILE_BYTES) if is_large else read_data_file(path, MAX_HELD_BYTES)
    entries = bytearray()
    try:
        # Lines of a large file are not read from the map: the system would end the process if the file were cut off.
        with path.open("rb") if isinstance(content, MappedFile) else io.BytesIO(content) as file:
            for start, line, place in _lines(file, len(content), path):
                entries += _entry(line, start, place)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if isinstance(content, MappedFile):
        content.check()
    return PairsInFile(content, np.frombuffer(entries, INDEX))


def _lines(file: Readable, size: int, path: Path) -> Iterator[tuple[int, bytes, str]]:
    """The first byte of each line, the line, and its place: the file and the line's number."""
    start, end = _limits(file, size)
    file.seek(start)
    number = 1
    while start < end:
        line = file.readline(min(MAX_LINE_BYTES + 1, end - start))
        if not line:
            raise InputError(f"{path} was cut off while it was read: it had {size} bytes and has {start}")
        if len(line) > MAX_LINE_BYTES:
            length = len(line)
            while not line.endswith(b"\n") and length < min(end - start, MAX_COUNTED_BYTES):
                line = file.readline(min(MAX_LINE_BYTES, end - start - length))
                length += len(line)
            raise InputError(f"{path}:{number}: the line has {length} bytes; it may have at most {MAX_LINE_BYTES}")
        yield start, line, f"{path}:{number}"
        start += len(line)
        number += 1


def _limits(file: Readable, size: int) -> tuple[int, int]:
    """The first byte after a byte order mark, and the end without blank lines."""
    begin = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    end = size
    while end > begin:
        start = max(begin, end - BLOCK_BYTES)
        file.seek(start)
        if rest := len(file.read(end - start).rstrip(b" \r\n")):
            return begin, start + rest
        end = start
    return begin, end


def _entry(line: bytes, start: int, place: str) -> bytes:
    """The entry of the pair on a line, which begins at the byte `start`; `place` is for error messages."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not valid UTF-8"
        ) from None
    if b"\0" in line:
        raise InputError(f"{place}: byte {line.index(0) + 1} of the line is NUL, which no text holds")
    columns = line.split(b"\t", 2)[:2]
    if len(columns) < 2:
        raise InputError(f"{place}: no tab in the line; one must separate the source text from the target text")
    # As texts, since `bytes.strip` knows ASCII's white space alone.
    source, target = (column.decode().strip().encode() for column in columns)
    for side, text in (("source", source), ("target", target)):
        if not text:
            raise InputError(f"{place}: the {side} text is empty")
    at = columns[0].index(source)
    to_target = len(columns[0]) + 1 + columns[1].index(target) - at
    digest = blake2b(source, digest_size=8).digest()
    return ENTRY.pack(start + at, to_target, len(source), len(target), digest)
