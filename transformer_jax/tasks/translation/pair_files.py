"""Pairs of texts from a file of tab-separated columns, as in the Tatoeba and Anki files.

The first column is the source, the second the target; further ones are ignored.
"""

import codecs
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.tasks.data_files import read_data_file
from transformer_jax.tasks.translation.padded_pairs import PairSplits, TextPair, padded_splits

MAX_FILE_BYTES = 2**31  # the pairs take several times as much memory
MAX_LINE_BYTES = 2**20  # a longer line is no pair of sentences
HELD_OUT = 0.05  # of all sources for validation, and as many for the test
MAX_HELD_OUT = 2_000  # sources in each of the two; decoding takes long


def load_pairs(path: Path, *, max_bytes: int = 256, seed: int = 42) -> PairSplits:
    """Data sets of a file's pairs; no source text is in two of them.

    Pairs with a text of more than `max_bytes` bytes in UTF-8 are left out; their number is printed.

    Raises:
        InputError: the file cannot be read, a line is no pair, or too few pairs are left.
    """
    pairs = read_pairs(path)
    short = [pair for pair in pairs if max(len(pair.source.encode()), len(pair.target.encode())) <= max_bytes]
    if len(short) < len(pairs):
        print(f"{path}: {len(pairs) - len(short)} of {len(pairs)} pairs left out, longer than {max_bytes} bytes")
    if not short:
        reason = f"all {len(pairs)} are longer than max_bytes, {max_bytes}" if pairs else "the file is empty"
        raise InputError(f"{path}: no pairs left; {reason}")
    try:
        return padded_splits(*split_pairs(short, seed))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def read_pairs(path: Path) -> list[TextPair]:
    """The first two columns of a UTF-8 file, without the white space around them.

    A byte order mark, Windows' line ends and blank lines at the end are ignored.

    Raises:
        InputError: the file cannot be read, is no regular file or too large; a line is not UTF-8, has no tab, a NUL or
            an empty side, or is too long.
    """
    content = read_data_file(Path(path), MAX_FILE_BYTES).removeprefix(codecs.BOM_UTF8).rstrip(b" \r\n")
    return [_pair(line, f"{path}:{number}") for number, line in enumerate(io.BytesIO(content), start=1)]


def split_pairs(pairs: Sequence[TextPair], seed: int) -> tuple[list[TextPair], list[TextPair], list[TextPair]]:
    """Pairs for training, validation and test, a function of the pairs and the seed.

    All pairs of one source are in one split, so that no source of the test was trained on.

    Raises:
        InputError: there are fewer than 3 different sources.
    """
    sources = list(dict.fromkeys(pair.source for pair in pairs))
    if len(sources) < 3:
        raise InputError(f"{len(sources)} different source texts; training, validation and test need at least one each")
    held_out = max(1, min(round(HELD_OUT * len(sources)), MAX_HELD_OUT))
    order = np.random.default_rng(seed).permutation(len(sources)).tolist()
    test = {sources[index] for index in order[:held_out]}
    val = {sources[index] for index in order[held_out : 2 * held_out]}
    return (
        [pair for pair in pairs if pair.source not in test and pair.source not in val],
        [pair for pair in pairs if pair.source in val],
        [pair for pair in pairs if pair.source in test],
    )


def _pair(line: bytes, place: str) -> TextPair:
    """The pair on a line; `place` is the file and the line's number."""
    if len(line) > MAX_LINE_BYTES:
        raise InputError(f"{place}: the line has {len(line)} bytes; it may have at most {MAX_LINE_BYTES}")
    try:
        columns = line.decode().split("\t")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not valid UTF-8"
        ) from None
    if b"\0" in line:
        raise InputError(f"{place}: byte {line.index(0) + 1} of the line is NUL, which no text holds")
    if len(columns) < 2:
        raise InputError(f"{place}: no tab in the line; one must separate the source text from the target text")
    source, target = (column.strip() for column in columns[:2])
    for side, text in (("source", source), ("target", target)):
        if not text:
            raise InputError(f"{place}: the {side} text is empty")
    return TextPair(source, target)
