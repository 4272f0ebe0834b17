"""Labelled texts for training, validation and test: split, and padded to a few lengths as batches."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.data.batch import BatchDataset, StackedSamples
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.length_buckets import Shape, smallest_shape
from transformer_jax.errors import LARGEST, InputError, shortened
from transformer_jax.outside_files import as_input_error
from transformer_jax.tasks.byte_text import pad
from transformer_jax.tasks.classification.files import LabelledText

HELD_OUT = 10  # of so many texts of a label one is for validation, and one for the test

Texts = Sequence[LabelledText]
Targets = Float[np.ndarray, "N C"]


class Splits(NamedTuple):
    """Labelled texts for training, validation and test."""

    train: Texts
    val: Texts
    test: Texts


class TextInputs(NamedTuple):
    """What the model reads."""

    ids: Int[ArrayLike, "B T"]  # tokens, then padding
    is_token: Bool[ArrayLike, "B T"] | None  # None: no padding
    types: Int[ArrayLike, "B T"]  # 1 for the tokens of a second text


class TextDataset(BatchDataset):
    """Texts with targets; a batch is padded to the shortest of a few lengths that holds it.

    Args:
        encodings: of the texts, by the library `tokenizers`.
        targets: targets of the loss.
        shapes: padded lengths, from the shortest to the longest.
    """

    def __init__(self, encodings: Sequence[Any], targets: Targets, shapes: Sequence[Shape]) -> None:
        self.encodings = encodings
        self.targets = targets
        self.shapes = shapes
        lengths = np.array([len(encoding) for encoding in encodings])
        # [N], the shape of each text: `groups` of `make_loader`, which puts texts of one shape into one batch
        self.buckets = smallest_shape(lengths, lengths, shapes).astype(np.int8)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        length = self.shapes[self.buckets[indices.whole].max()].source
        chosen = [self.encodings[index] for index in indices]
        ids = pad([np.array(encoding.ids) for encoding in chosen], length, -1)
        types = pad([np.array(encoding.type_ids) for encoding in chosen], length, 0)
        inputs = TextInputs(np.maximum(ids, 0), ids >= 0, types)
        return StackedSamples((inputs, self.targets[indices]))

    def fingerprint(self) -> str:
        """SHA-256 of the texts, their targets, and the lengths to which they are padded."""
        ids = [np.array(encoding.ids) for encoding in self.encodings]
        return fingerprint([], [np.array(self.shapes), self.buckets, *ids, self.targets])


def split_texts(texts: Texts, val: Texts | None, test: Texts | None, *, by_label: bool) -> Splits:
    """Split texts for training, validation and test; the result depends only on the texts and their order.

    Of the texts of each label (of several labels, the rarest one), a tenth goes into each part. Equal texts are in one
    part. Texts of `val` and `test` are left out of training.

    Args:
        texts: texts to split.
        val, test: texts to use instead of a part of `texts`.
        by_label: whether labels are classes, not numbers, which are all different.

    Raises:
        InputError: a label has only one text to split, or a set has no text.
    """
    held_out = {example.texts for example in (*(val or ()), *(test or ()))}
    groups: dict[tuple[str, ...], list[LabelledText]] = defaultdict(list)
    for example in texts:
        if example.texts not in held_out:
            groups[example.texts].append(example)
    counts = Counter(label for first, *_ in groups.values() for label in first.labels)
    missing = [name for name, given in (("val", val), ("test", test)) if given is None]
    # the parts to which the texts of a label go in turn
    turns = ["train", *missing, *["train"] * HELD_OUT][:HELD_OUT]
    turns_of: dict[str, Iterator[str]] = defaultdict(lambda: itertools.cycle(turns))
    members = list(groups.values())
    chosen = {}
    for index in np.random.default_rng(42).permutation(len(members)):
        first = members[index][0]
        label = min(first.labels if by_label else (), key=counts.__getitem__, default="")
        if missing and counts[label] == 1:
            raise InputError(
                f"{first.place}: {shortened(label)} is the label of this text alone; give more"
                " such texts, or val_data and test_data"
            )
        chosen[index] = next(turns_of[label])
    parts = defaultdict[str, list[LabelledText]](list)
    for index, group in enumerate(members):
        parts[chosen[index]] += group
    splits = Splits(parts["train"], val or parts["val"], test or parts["test"])
    for name, part in splits._asdict().items():
        if not part:
            raise InputError(
                f"data has too few different texts: none is left for the set {name}, since a text"
                " is in one set only; give more texts"
            )
    return splits


def class_targets(texts: Texts, labels: Sequence[str]) -> Targets:
    """A row for each text with 1 for each of its labels; an `InputError` if a text has another label."""
    numbers = {label: number for number, label in enumerate(labels)}
    targets = np.zeros((len(texts), len(labels)), np.float32)
    for row, example in zip(targets, texts, strict=True):
        for label in example.labels:
            if label not in numbers:
                raise InputError(
                    f"{example.place}: the label is {shortened(label)}; it must be one of"
                    f" {shortened(', '.join(labels))}, the labels of the training texts, of the"
                    " setting labels, or of the run that is resumed (name=… begins another)"
                )
            row[numbers[label]] = 1
    return targets


def number_targets(texts: Texts) -> Targets:
    """The number that is the label of each text; an `InputError` if one is not."""
    numbers = []
    for example in texts:
        with as_input_error(
            f"{example.place}: with regression=True, labels must be numbers", ValueError
        ):
            number = float(example.labels[0])
            if not abs(number) < LARGEST:  # nor NaN
                raise ValueError(f"{number} is not finite in float32")
            numbers.append([number])
    return np.array(numbers, np.float32)
