"""Pairs of texts: read from a file of tab-separated columns, split, and padded as batches for an encoder–decoder.

In a file, e.g. from Tatoeba or Anki, the first column is the source, the second the target; others are ignored.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int, Shaped

from transformer_jax.data.batch import BatchDataset, StackedSamples
from transformer_jax.data.epoch_sampler import EpochIndices, TokenBatches
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape
from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file, read_text
from transformer_jax.tasks.byte_text import pad
from transformer_jax.tasks.tokenization import Tokenizer

MAX_FILE_BYTES = 2**31  # a pair in memory takes about 200 bytes besides its texts
HELD_OUT = 0.05  # of all sources for validation, and as many for the test
MAX_HELD_OUT = 2_000  # sources in each of the two; decoding takes long


class TextPair(NamedTuple):
    """A text and its translation."""

    source: str
    target: str

    @property
    def num_bytes(self) -> int:
        """Length of the longer text in UTF-8."""
        return max(len(self.source.encode()), len(self.target.encode()))


Pairs: TypeAlias = Sequence[TextPair]


class PairInputs(NamedTuple):
    """Ids that the model reads: the source text, and the target text before each position that it predicts.

    The targets of the loss are the target text one position later: tokens, the end token, then padding.
    """

    source: Shaped[ArrayLike, "*B S"]  # tokens, then padding
    target: Shaped[ArrayLike, "*B T"]  # the start token, tokens, then padding


class Tokenizers(NamedTuple):
    """Tokenizers of the source and the target texts."""

    source: Tokenizer = Tokenizer()
    target: Tokenizer = Tokenizer()


class PairDataset(BatchDataset):
    """Pairs of texts; a batch of them is padded to the smallest of a few shapes that holds it.

    Args:
        pairs: a source and a target text each.
        shapes: padded shapes, from the smallest to the largest, including START and END.
        tokenizers: tokenizers of the texts.
        batch_tokens: tokens per batch, including the padding of its longer side; None: a fixed number of pairs.

    Raises:
        InputError: a pair has more tokens than a batch.
    """

    def __init__(
        self,
        pairs: Pairs,
        shapes: Sequence[Shape],
        tokenizers: Tokenizers,
        batch_tokens: int | None = None,
    ) -> None:
        self.pairs = pairs
        self.shapes = shapes
        self.tokenizers = tokenizers
        self.lengths = _lengths(pairs, tokenizers)
        # [N], the shape of each pair: `groups` of `make_loader`, which puts pairs of one shape into one batch. A batch
        # of dates then has 1.28 source positions for each real one, instead of 3.8 in mixed batches: one text in 50
        # has the longest shape, and 72 of 100 mixed batches of 64 have such a text.
        self.buckets = smallest_shape(*self.lengths, shapes).astype(np.int8)
        # as `__getitems__` pads them; the decoder reads a target without its last token
        longer_sides = tuple(max(shape.source, shape.target - 1) for shape in shapes)
        self.token_batches = None
        if batch_tokens is not None:
            self.token_batches = TokenBatches(batch_tokens, longer_sides)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        pairs = [self.pairs[index] for index in indices]
        shape = self.shapes[self.buckets[indices.whole].max()]
        source_tokenizer, target_tokenizer = self.tokenizers
        sources = [source_tokenizer.encode(pair.source) for pair in pairs]
        targets = [target_tokenizer.encode(pair.target, delimited=True) for pair in pairs]
        source = pad(sources, shape.source, source_tokenizer.pad)  # [B S]
        target = pad(targets, shape.target, target_tokenizer.pad)  # [B T+1]
        return StackedSamples((PairInputs(source, target[:, :-1]), target[:, 1:]))

    def fingerprint(self) -> str:
        """SHA-256 of the pairs and of the shapes to which they are padded."""
        sides = ["".join(side).encode() for side in zip(*self.pairs, strict=True)]
        texts = [np.frombuffer(side, np.uint8) for side in sides]
        return fingerprint([], [np.array(self.shapes), *self.lengths, *texts])


class PairSplits(NamedTuple):
    """Pairs for training, validation and test."""

    train: Pairs
    val: Pairs
    test: Pairs
    too_long: int = 0  # pairs that were left out for their length
    # pairs left out of training since their source is in the validation or test set
    held_elsewhere: int = 0

    def counts(self) -> dict[str, int]:
        """Pairs in each set, and pairs that were left out."""
        return {
            "train": len(self.train),
            "val": len(self.val),
            "test": len(self.test),
            "too_long": self.too_long,
            "held_elsewhere": self.held_elsewhere,
        }

    def padded(self, tokenizers: Tokenizers, batch_tokens: int | None = None) -> list[PairDataset]:
        """Create the three data sets, padded to shapes that are chosen for all of them together."""
        parts = self.train, self.val, self.test
        all_pairs = [pair for part in parts for pair in part]
        shapes = choose_shapes(*_lengths(all_pairs, tokenizers))
        return [PairDataset(part, shapes, tokenizers, batch_tokens) for part in parts]


def _lengths(
    pairs: Pairs, tokenizers: Tokenizers
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Number of ids of each source, and of each target with its start and end tokens."""
    sources, targets = zip(*pairs, strict=True)
    return tokenizers.source.lengths(sources), tokenizers.target.lengths(targets) + 2


def load_pairs(
    path: Path,
    *,
    val_path: Path | None = None,
    test_path: Path | None = None,
    max_bytes: int,
    lower_case: bool = False,
) -> PairSplits:
    """Load the pairs in files; no source text of the training set is in another set.

    Pairs with a text of more than `max_bytes` bytes in UTF-8 are left out.

    Args:
        path: file of pairs.
        val_path, test_path: files of the validation and the test pairs; None takes a part of the pairs of `path`.
        max_bytes: maximum length of a text.
        lower_case: write all texts in lower case.

    Raises:
        InputError: a file cannot be read, a line is not a pair, or too few pairs are left.
    """
    short: dict[str, list[TextPair]] = {}
    num_read = 0
    for name, file in (("all", path), ("val", val_path), ("test", test_path)):
        if file is None:
            continue
        pairs = read_pairs(file, lower_case=lower_case)
        short[name] = [pair for pair in pairs if pair.num_bytes <= max_bytes]
        if not short[name]:
            raise InputError(
                f"{file}: no pairs left; all {len(pairs)} are longer than max_bytes, {max_bytes}"
            )
        num_read += len(pairs)
    splits = split_pairs(short["all"], short.get("val"), short.get("test"))
    num_short = sum(map(len, short.values()))
    num_used = sum(map(len, splits))
    return PairSplits(*splits, num_read - num_short, num_short - num_used)


def read_pairs(path: Path, *, lower_case: bool = False) -> list[TextPair]:
    """Read the first two columns of a UTF-8 file, without the white space around them.

    A byte order mark, Windows line endings and blank lines at the end are ignored.

    Args:
        path: file of pairs.
        lower_case: convert all texts to lower case.

    Raises:
        InputError: the file cannot be read, is not a regular file, or is too large; a line is not UTF-8, has no tab, or
            has an empty side.
    """
    with outside_file(path, "a file of pairs", MAX_FILE_BYTES) as file:
        content = read_text(file).rstrip(" \r\n")
    if not content:
        raise InputError(f"{path}: no pairs left; the file is empty")
    lines = (content.lower() if lower_case else content).split("\n")
    return [_pair(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]


def _pair(line: str, place: str) -> TextPair:
    """The pair on a line; `place` is for error messages."""
    columns = line.split("\t", 2)[:2]
    if len(columns) < 2:
        raise InputError(
            f"{place}: no tab in the line; one must separate the source text from the target text"
        )
    pair = TextPair(*map(str.strip, columns))
    if not (pair.source and pair.target):
        raise InputError(f"{place}: the {'target' if pair.source else 'source'} text is empty")
    return pair


def summary(splits: PairSplits) -> str:
    """The sizes of the three sets and the numbers of pairs that were left out, in one line."""
    sentence = (
        "Pairs: {train} for training, {val} for validation, {test} for test; left out: {too_long}"
        " longer than --max-bytes, {held_elsewhere} also in --val-data or --test-data"
    )
    return sentence.format(**splits.counts())


def split_pairs(
    pairs: Pairs,
    val: Pairs | None = None,
    test: Pairs | None = None,
) -> tuple[Pairs, Pairs, Pairs]:
    """Split pairs for training, validation and test; the result depends only on the pairs and their order.

    All pairs of one source are in one split, so that no source of validation or test was trained on.

    Args:
        pairs: pairs to split.
        val, test: pairs to use instead of a part of `pairs`; pairs with their sources are left out of `pairs`.

    Raises:
        InputError: there are fewer different sources than splits to be made.
    """
    held_out = {pair.source for pair in (*(val or ()), *(test or ()))}
    sources = list(dict.fromkeys(pair.source for pair in pairs if pair.source not in held_out))
    num_sources = len(sources)
    num_splits = 1 + (val is None) + (test is None)
    if num_sources < num_splits:
        raise InputError(
            f"data has {num_sources} different sources that no other file has; it needs"
            f" {num_splits} or more"
        )
    size = max(1, min(round(HELD_OUT * num_sources), MAX_HELD_OUT))
    order = np.random.default_rng(42).permutation(num_sources)
    shuffled = [sources[index] for index in order]
    if test is None:
        test = _pairs_from(pairs, shuffled[:size])
        del shuffled[:size]
    if val is None:
        val = _pairs_from(pairs, shuffled[:size])
        del shuffled[:size]
    return _pairs_from(pairs, shuffled), val, test


def _pairs_from(pairs: Pairs, sources: Sequence[str]) -> list[TextPair]:
    """The pairs with these sources."""
    chosen = set(sources)
    return [pair for pair in pairs if pair.source in chosen]
