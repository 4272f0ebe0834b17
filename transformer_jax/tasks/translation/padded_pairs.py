"""Pairs of texts as padded batches for an encoder–decoder model."""

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int, Shaped, UInt8

from transformer_jax.data.batch import Samples
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape
from transformer_jax.data.stacked_samples import StackedSamples
from transformer_jax.tasks.byte_text import encode, pad

Side = Literal["source", "target"]
SIDES: tuple[Side, Side] = ("source", "target")
TEXTS_AT_ONCE = 4096  # for the fingerprint


@dataclasses.dataclass(frozen=True, slots=True)
class TextPair:
    """A text and its translation."""

    source: str
    target: str


@runtime_checkable
class KeptTexts(Protocol):
    """Pairs whose texts are not in memory: they know the texts' sizes, and read them one after another."""

    def sizes(self) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """Bytes of each source and of each target."""

    def texts(self, side: Side) -> Iterator[bytes]:
        """The sources, or the targets."""


class PairInputs(NamedTuple):
    """Ids that the model reads: the source text, and the target text before each position that it predicts.

    The targets of the loss are the target text one position later: bytes, END, then PAD.
    """

    source: Shaped[ArrayLike, "*B S"]  # bytes, then PAD
    target: Shaped[ArrayLike, "*B T"]  # START, bytes, then PAD


class JoinedTexts:
    """The texts of one side as one array of bytes, of which some are read at a time."""

    dtype = np.dtype(np.uint8)

    def __init__(self, pairs: KeptTexts, side: Side) -> None:
        self._pairs, self._side = pairs, side
        self.shape = (int(pairs.sizes()[SIDES.index(side)].sum(dtype=int)),)

    def blocks(self) -> Iterator[UInt8[np.ndarray, " _"]]:
        """The bytes, those of a few thousand texts at a time."""
        texts = self._pairs.texts(self._side)
        while block := b"".join(islice(texts, TEXTS_AT_ONCE)):
            yield np.frombuffer(block, self.dtype)


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
        # [N], the shape of each pair: `groups` of `make_loader`, which puts pairs of one shape into one batch. A batch
        # of dates then has 1.28 source positions for each real one, and 3.8 when pairs are mixed: one text in 50 is of
        # the longest shape, and 72 of 100 batches of 64 hold such a text.
        self.buckets = smallest_shape(*lengths, self.shapes).astype(np.int8)

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Samples:
        sample: Samples = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        pairs = [self.pairs[index] for index in indices]
        batch = indices.whole if isinstance(indices, EpochIndices) else indices
        shape = self.shapes[self.buckets[batch].max()]
        source = pad([encode(pair.source) for pair in pairs], shape.source)
        target = pad([encode(pair.target, delimited=True) for pair in pairs], shape.target)
        return StackedSamples((PairInputs(source, target[:, :-1]), target[:, 1:]))

    def fingerprint(self) -> str:
        """SHA-256 of the pairs and of the shapes to which they are padded."""
        return fingerprint([], [np.array(self.shapes), *_lengths(self.pairs), *map(self._joined, SIDES)])

    def _joined(self, side: Side) -> JoinedTexts | UInt8[np.ndarray, " _"]:
        """The bytes of all sources, or of all targets."""
        if isinstance(self.pairs, KeptTexts):
            return JoinedTexts(self.pairs, side)
        return np.frombuffer("".join(getattr(pair, side) for pair in self.pairs).encode(), np.uint8)


@dataclasses.dataclass(frozen=True)
class PairSplits:
    """Training, validation and test set, padded to the same shapes."""

    train: PairDataset
    val: PairDataset
    test: PairDataset
    too_long: int = 0  # pairs that were left out for their length
    held_elsewhere: int = 0  # pairs left out of training since their source is in the validation or test set

    def counts(self) -> dict[str, int]:
        """Pairs in each set, and pairs that were left out."""
        numbers = {name: len(getattr(self, name)) for name in ("train", "val", "test")}
        return {**numbers, "too_long": self.too_long, "held_elsewhere": self.held_elsewhere}


def padded_splits(train: Sequence[TextPair], val: Sequence[TextPair], test: Sequence[TextPair]) -> PairSplits:
    """Data sets of three lists of pairs, padded to shapes that are chosen for all of them together."""
    sources, targets = zip(*(_lengths(pairs) for pairs in (train, val, test)), strict=True)
    shapes = choose_shapes(np.concatenate(sources), np.concatenate(targets))
    return PairSplits(PairDataset(train, shapes), PairDataset(val, shapes), PairDataset(test, shapes))


def _lengths(pairs: Sequence[TextPair]) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " N"]]:
    """Ids of each source, and of each target with START and END."""
    if isinstance(pairs, KeptTexts):
        source_bytes, target_bytes = pairs.sizes()
        return source_bytes.astype(int), target_bytes.astype(int) + 2
    sources = np.array([len(pair.source.encode()) for pair in pairs], int)
    targets = np.array([len(pair.target.encode()) + 2 for pair in pairs], int)
    return sources, targets
