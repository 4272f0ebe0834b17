"""Pairs of texts as padded batches for an encoder–decoder model."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int, Shaped

from transformer_jax.data.batch import BatchDataset, StackedSamples
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape
from transformer_jax.tasks.byte_text import pad
from transformer_jax.tasks.tokenization import Tokenizer


@dataclasses.dataclass(frozen=True, slots=True)
class TextPair:
    """A text and its translation."""

    source: str
    target: str


class PairInputs(NamedTuple):
    """Ids that the model reads: the source text, and the target text before each position that it predicts.

    The targets of the loss are the target text one position later: tokens, the end token, then padding.
    """

    source: Shaped[ArrayLike, "*B S"]  # tokens, then padding
    target: Shaped[ArrayLike, "*B T"]  # the start token, tokens, then padding


class Tokenizers(NamedTuple):
    """Of the source and of the target texts."""

    source: Tokenizer
    target: Tokenizer


BYTES = Tokenizers(Tokenizer(), Tokenizer())


class PairDataset(BatchDataset):
    """Pairs of texts; a batch of them is padded to the smallest of a few shapes that holds it.

    Args:
        pairs: a source and a target text each.
        shapes: from the smallest to the largest, with START and END counted; chosen for these pairs if None.
        tokenizers: of their texts.
    """

    def __init__(
        self, pairs: Sequence[TextPair], shapes: Sequence[Shape] | None = None, tokenizers: Tokenizers = BYTES
    ) -> None:
        self.pairs, self.tokenizers = pairs, tokenizers
        lengths = _lengths(pairs, tokenizers)
        self.shapes = choose_shapes(*lengths) if shapes is None else list(shapes)
        # [N], the shape of each pair: `groups` of `make_loader`, which puts pairs of one shape into one batch. A batch
        # of dates then has 1.28 source positions for each real one, and 3.8 when pairs are mixed: one text in 50 is of
        # the longest shape, and 72 of 100 batches of 64 hold such a text.
        self.buckets = smallest_shape(*lengths, self.shapes).astype(np.int8)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        pairs = [self.pairs[index] for index in indices]
        shape = self.shapes[self.buckets[indices.whole].max()]
        of_source, of_target = self.tokenizers
        source = pad([of_source.encode(pair.source) for pair in pairs], shape.source, of_source.pad)
        target = pad([of_target.encode(pair.target, delimited=True) for pair in pairs], shape.target, of_target.pad)
        return StackedSamples((PairInputs(source, target[:, :-1]), target[:, 1:]))

    def fingerprint(self) -> str:
        """SHA-256 of the pairs and of the shapes to which they are padded."""
        texts = ("".join(getattr(pair, side) for pair in self.pairs) for side in ("source", "target"))
        joined = (np.frombuffer(text.encode(), np.uint8) for text in texts)
        return fingerprint([], [np.array(self.shapes), *_lengths(self.pairs, self.tokenizers), *joined])


@dataclasses.dataclass(frozen=True)
class PairSplits:
    """Training, validation and test set, padded to the same shapes."""

    train: PairDataset
    val: PairDataset
    test: PairDataset
    too_long: int = 0  # pairs that were left out for their length
    held_elsewhere: int = 0  # pairs left out of training since their source is in the validation or test set

    def tokenized(self, tokenizers: Tokenizers) -> "PairSplits":
        """The same pairs as other tokens."""
        if tokenizers.source.num_bytes is None and tokenizers.target.num_bytes is None:
            return self
        train, val, test = (data.pairs for data in (self.train, self.val, self.test))
        made = padded_splits(train, val, test, tokenizers)
        return dataclasses.replace(made, too_long=self.too_long, held_elsewhere=self.held_elsewhere)

    def counts(self) -> dict[str, int]:
        """Pairs in each set, and pairs that were left out."""
        numbers = {name: len(getattr(self, name)) for name in ("train", "val", "test")}
        return {**numbers, "too_long": self.too_long, "held_elsewhere": self.held_elsewhere}


def padded_splits(
    train: Sequence[TextPair], val: Sequence[TextPair], test: Sequence[TextPair], tokenizers: Tokenizers = BYTES
) -> PairSplits:
    """Data sets of three lists of pairs, padded to shapes that are chosen for all of them together."""
    sources, targets = zip(*(_lengths(pairs, tokenizers) for pairs in (train, val, test)), strict=True)
    shapes = choose_shapes(np.concatenate(sources), np.concatenate(targets))
    first, second, third = (PairDataset(pairs, shapes, tokenizers) for pairs in (train, val, test))
    return PairSplits(first, second, third)


def _lengths(pairs: Sequence[TextPair], tokenizers: Tokenizers) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Ids of each source, and of each target with the two around it."""
    sources = tokenizers.source.lengths([pair.source for pair in pairs])
    return sources, tokenizers.target.lengths([pair.target for pair in pairs]) + 2
