"""Pairs of texts from a file of tab-separated columns, as in the Tatoeba and Anki files.

The first column is the source, the second the target; further ones are ignored.
"""

import codecs
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file
from transformer_jax.tasks.translation.padded_pairs import PairSplits, TextPair, padded_splits

MAX_FILE_BYTES = 2**31  # a pair in memory takes about 200 bytes beside its texts
HELD_OUT = 0.05  # of all sources for validation, and as many for the test
MAX_HELD_OUT = 2_000  # sources in each of the two; decoding takes long


def load_pairs(
    path: Path, *, val_path: Path | None = None, test_path: Path | None = None, max_bytes: int = 256, seed: int = 42
) -> PairSplits:
    """Data sets of the pairs in files; no source text of the training set is in another one.

    Pairs with a text of more than `max_bytes` bytes in UTF-8 are left out.

    Args:
        path: file of pairs.
        val_path, test_path: files of the validation and the test pairs; None takes a part of the first file's.
        max_bytes: of a text.
        seed: of the split.

    Raises:
        InputError: a file cannot be read, a line is no pair, or too few pairs are left.
    """
    paths = {"all": path, "val": val_path, "test": test_path}
    read = {name: read_pairs(file) for name, file in paths.items() if file is not None}
    short = {name: _short_pairs(paths[name], pairs, max_bytes) for name, pairs in read.items()}
    parts = split_pairs(short["all"], seed, val=short.get("val"), test=short.get("test"))
    num_short = sum(map(len, short.values()))
    return dataclasses.replace(
        padded_splits(*parts),
        too_long=sum(map(len, read.values())) - num_short,
        held_elsewhere=num_short - sum(map(len, parts)),
    )


def read_pairs(path: Path) -> list[TextPair]:
    """The first two columns of a UTF-8 file, without the white space around them.

    A byte order mark, Windows' line ends and blank lines at the end are ignored.

    Raises:
        InputError: the file cannot be read, is no regular file or too large; a line is not UTF-8, has no tab, or an
            empty side.
    """
    with outside_file(path, "a file of pairs", MAX_FILE_BYTES) as file:
        content = file.read_bytes().removeprefix(codecs.BOM_UTF8).rstrip(b" \r\n")
    lines = content.split(b"\n") if content else []
    return [_pair(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _pair(line: bytes, place: str) -> TextPair:
    """The pair on a line; `place` is for error messages."""
    try:
        columns = line.decode().split("\t", 2)[:2]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: byte {error.start + 1} of the line, 0x{line[error.start]:02x}, is not valid UTF-8"
        ) from None
    if len(columns) < 2:
        comma = "; commas do not: save the table as tab-separated values" if b"," in line else ""
        raise InputError(f"{place}: no tab in the line; one must separate the source text from the target text{comma}")
    pair = TextPair(*map(str.strip, columns))
    if not (pair.source and pair.target):
        raise InputError(f"{place}: the {'target' if pair.source else 'source'} text is empty")
    return pair


def summary(splits: PairSplits) -> str:
    """The sizes of the three sets and the numbers of pairs that were left out, in one line."""
    return (
        f"Pairs: {len(splits.train)} for training, {len(splits.val)} for validation, {len(splits.test)} for test; left "
        f"out: {splits.too_long} longer than --max-bytes, {splits.held_elsewhere} also in --val-data or --test-data"
    )


def split_pairs(
    pairs: Sequence[TextPair],
    seed: int,
    *,
    val: Sequence[TextPair] | None = None,
    test: Sequence[TextPair] | None = None,
) -> tuple[Sequence[TextPair], Sequence[TextPair], Sequence[TextPair]]:
    """Pairs for training, validation and test, a function of the pairs and the seed.

    All pairs of one source are in one split, so that no source of the validation or the test was trained on.

    Args:
        pairs: to be split.
        seed: of the split.
        val, test: these pairs, in the place of a part of `pairs`; those of their sources are left out of `pairs`.

    Raises:
        InputError: there are fewer different sources than splits to be made.
    """
    given = {pair.source for part in (val, test) if part is not None for pair in part}
    sources = [source for source in dict.fromkeys(pair.source for pair in pairs) if source not in given]
    drawn = [name for name, part in (("test", test), ("validation", val)) if part is None]  # in the order of the draw
    if len(sources) < 1 + len(drawn):
        where = " that are in no other file" if given else ""
        needed = ", ".join(["training", *reversed(drawn)])
        raise InputError(f"data has {len(sources)} different sources{where}; one each is needed for {needed}")
    size = max(1, min(round(HELD_OUT * len(sources)), MAX_HELD_OUT))
    order = np.random.default_rng(seed).permutation(len(sources)).tolist()
    split_of = dict.fromkeys(sources, "training")
    for number, split in enumerate(drawn):
        split_of |= {sources[index]: split for index in order[number * size : (number + 1) * size]}

    def of(split: str) -> list[TextPair]:
        return [pair for pair in pairs if split_of.get(pair.source) == split]

    return of("training"), of("validation") if val is None else val, of("test") if test is None else test


def _short_pairs(path: Path | None, pairs: Sequence[TextPair], max_bytes: int) -> list[TextPair]:
    """The pairs of a file whose texts are short enough; an `InputError` if there is none."""
    short = [pair for pair in pairs if max(len(pair.source.encode()), len(pair.target.encode())) <= max_bytes]
    if not short:
        reason = f"all {len(pairs)} are longer than max_bytes, {max_bytes}" if pairs else "the file is empty"
        raise InputError(f"{path}: no pairs left; {reason}")
    return short
