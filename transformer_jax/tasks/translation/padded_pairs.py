"""Pairs of texts as padded batches for an encoder–decoder model."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int, Shaped

from transformer_jax.data.batch import Samples
from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape
from transformer_jax.data.loader import StackedSamples
from transformer_jax.tasks.translation.byte_text import encode, pad


@dataclasses.dataclass(frozen=True, slots=True)
class TextPair:
    """A text and what it is to be turned into."""

    source: str
    target: str


class PairInputs(NamedTuple):
    """Ids that the model reads: the source text, and the target text before each position that it predicts.

    The targets of the loss are the target text one position later: bytes, END, then PAD.
    """

    source: Shaped[ArrayLike, "*B S"]  # bytes, then PAD
    target: Shaped[ArrayLike, "*B T"]  # START, bytes, then PAD


class PairDataset:
    """Pairs of texts; a batch of them is padded to the smallest of a few shapes that holds it.

    Args:
        pairs: a source and a target text each.
        shapes: from the smallest to the largest, with START and END counted; chosen for these pairs if None.

    Raises:
        ValueError: a pair is longer than the largest shape.
    """

    def __init__(self, pairs: Sequence[TextPair], shapes: Sequence[Shape] | None = None) -> None:
        self.pairs = pairs
        lengths = _lengths(pairs)
        self.shapes = choose_shapes(*lengths) if shapes is None else list(shapes)
        # [N], the shape of each pair. As `groups` of `make_loader` they bring pairs of one shape together: on the dates
        # a batch then has 1.28 source positions for each real one, 3.8 when pairs are mixed (72 in 100 batches of 64
        # hold one of the longest texts, 1 in 50).
        self.buckets = smallest_shape(*lengths, self.shapes)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Samples:
        sample: Samples = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        pairs = [self.pairs[index] for index in indices]
        shape = self.shapes[self.buckets[indices].max()]
        source = pad([encode(pair.source) for pair in pairs], shape.source)
        target = pad([encode(pair.target, delimited=True) for pair in pairs], shape.target)
        return StackedSamples((PairInputs(source, target[:, :-1]), target[:, 1:]))


class PairSplits(NamedTuple):
    """Training, validation and test set, padded to the same shapes."""

    train: PairDataset
    val: PairDataset
    test: PairDataset


def padded_splits(train: Sequence[TextPair], val: Sequence[TextPair], test: Sequence[TextPair]) -> PairSplits:
    """Data sets of three lists of pairs, with shapes chosen for all of them together."""
    lengths = [_lengths(pairs) for pairs in (train, val, test)]
    shapes = choose_shapes(*(np.concatenate(sides) for sides in zip(*lengths, strict=True)))
    return PairSplits(*(PairDataset(pairs, shapes) for pairs in (train, val, test)))


def _lengths(pairs: Sequence[TextPair]) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Ids of each source, and of each target with START and END."""
    sources = np.array([len(pair.source.encode()) for pair in pairs], int)
    targets = np.array([len(pair.target.encode()) + 2 for pair in pairs], int)
    return sources, targets
