"""Pairs of texts from a file of tab-separated columns, as in the Tatoeba and Anki files.

The first column is the source, the second the target; further ones are ignored.
"""

import dataclasses
from pathlib import Path

import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.tasks.translation.padded_pairs import PairSplits, padded_splits
from transformer_jax.tasks.translation.pairs_in_file import PairsInFile, read_pairs

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
    try:
        parts = split_pairs(short["all"], seed, val=short.get("val"), test=short.get("test"))
        splits = padded_splits(*parts)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    num_short = sum(map(len, short.values()))
    return dataclasses.replace(
        splits,
        too_long=sum(map(len, read.values())) - num_short,
        held_elsewhere=num_short - sum(map(len, parts)),
    )


def summary(splits: PairSplits) -> str:
    """The sizes of the three sets and the numbers of pairs that were left out, in one line."""
    line = f"Pairs: {len(splits.train)} for training, {len(splits.val)} for validation, {len(splits.test)} for test"
    if splits.too_long:
        line += f"; {splits.too_long} left out as longer than --max-bytes"
    if splits.held_elsewhere:
        line += f"; {splits.held_elsewhere} left out of training as their source is in --val-data or --test-data"
    return line


def split_pairs(
    pairs: PairsInFile, seed: int, *, val: PairsInFile | None = None, test: PairsInFile | None = None
) -> tuple[PairsInFile, PairsInFile, PairsInFile]:
    """Pairs for training, validation and test, a function of the pairs and the seed.

    All pairs of one source are in one split, so that no source of the validation or the test was trained on.

    Args:
        pairs: to be split.
        seed: of the split.
        val, test: these pairs, in the place of a part of `pairs`; those of their sources are left out of `pairs`.

    Raises:
        InputError: there are fewer different sources than splits to be made.
    """
    # Sources are compared by digests of 64 bits. Two sources of one digest, which a billion pairs hold with 3 %
    # probability, would count as one.
    digests, first, source_of = np.unique(pairs.entries["digest"], return_index=True, return_inverse=True)
    given = [part.entries["digest"] for part in (val, test) if part is not None]
    is_given = np.isin(digests, np.concatenate(given)) if given else np.zeros(len(digests), bool)
    sources = np.flatnonzero(~is_given)
    sources = sources[np.argsort(first[sources])]  # in the order of the file
    drawn = [name for name, part in (("test", test), ("validation", val)) if part is None]  # in the order of the draw
    if len(sources) < 1 + len(drawn):
        where = " that are in no other file" if given else ""
        needed = " and ".join(", ".join(["training", *reversed(drawn)]).rsplit(", ", 1))
        raise InputError(
            f"{len(sources)} different source texts{where}; there must be at least {1 + len(drawn)}, one for {needed}"
            f"{' each' if drawn else ''}"
        )
    size = max(1, min(round(HELD_OUT * len(sources)), MAX_HELD_OUT))
    order = np.random.default_rng(seed).permutation(len(sources))
    splits = ["training", *drawn]
    split_of = np.where(is_given, -1, 0).astype(np.int8)  # number in `splits`, of each source
    for number in range(len(drawn)):
        split_of[sources[order[number * size : (number + 1) * size]]] = number + 1

    def of(split: str) -> PairsInFile:
        return pairs.take(split_of[source_of] == splits.index(split))

    return of("training"), of("validation") if val is None else val, of("test") if test is None else test


def _short_pairs(path: Path | None, pairs: PairsInFile, max_bytes: int) -> PairsInFile:
    """The pairs of a file whose texts are short enough; an `InputError` if there is none."""
    short = pairs.take(np.maximum(*pairs.sizes()) <= max_bytes)
    if not len(short):
        reason = f"all {len(pairs)} are longer than max_bytes, {max_bytes}" if pairs else "the file is empty"
        raise InputError(f"{path}: no pairs left; {reason}")
    return short
