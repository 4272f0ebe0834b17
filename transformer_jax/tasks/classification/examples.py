"""Labelled texts for training, validation and test: split, encoded as arrays, and padded to a few lengths."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int

from transformer_jax.data.batch import BatchDataset, StackedSamples
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.length_buckets import Shape, choose_shapes, smallest_shape
from transformer_jax.errors import InputError, shortened
from transformer_jax.tasks.byte_text import pad
from transformer_jax.tasks.classification.files import LabelledText

HELD_OUT = 0.1  # of each label's texts for validation, and as many for the test

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
        targets: of each class 1 if it is right, or the number to predict.
        shapes: padded lengths, from the shortest to the longest.
    """

    def __init__(self, encodings: Sequence[Any], targets: Targets, shapes: Sequence[Shape]) -> None:
        self.ids = [np.array(encoding.ids, np.int32) for encoding in encodings]
        self.types = [np.array(encoding.type_ids, np.int32) for encoding in encodings]
        self.targets, self.shapes = targets, shapes
        lengths = np.array([len(ids) for ids in self.ids])
        # [N], the shape of each text: `groups` of `make_loader`, which puts texts of one shape into one batch
        self.buckets = smallest_shape(lengths, lengths, shapes).astype(np.int8)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        length = self.shapes[self.buckets[indices.whole].max()].source
        ids = pad([self.ids[index] for index in indices], length, -1)
        types = pad([self.types[index] for index in indices], length, 0)
        inputs = TextInputs(np.maximum(ids, 0), ids >= 0, types)
        return StackedSamples((inputs, self.targets[list(indices)]))

    def fingerprint(self) -> str:
        """SHA-256 of the texts, their targets, and the lengths to which they are padded."""
        texts = [np.concatenate(arrays) for arrays in (self.ids, self.types)]
        lengths = np.array([len(ids) for ids in self.ids])
        return fingerprint([], [np.array(self.shapes), lengths, *texts, self.targets])


def padded(
    encodings: Sequence[Sequence[Any]], targets: Sequence[Targets]
) -> tuple[TextDataset, ...]:
    """Data sets of encoded texts, padded to lengths that are chosen for all of them together."""
    lengths = np.array([len(encoding.ids) for part in encodings for encoding in part])
    shapes = choose_shapes(lengths, lengths)
    return tuple(
        TextDataset(part, of_part, shapes) for part, of_part in zip(encodings, targets, strict=True)
    )


def split_texts(texts: Texts, val: Texts | None, test: Texts | None, *, by_label: bool) -> Splits:
    """Split texts for training, validation and test; the result depends only on the texts and their order.

    Equal texts are in one split. Texts of `val` and `test` are left out of training.

    Args:
        texts: texts to split.
        val, test: texts to use instead of a part of `texts`.
        by_label: take a tenth of the texts of each label, of several labels the rarest one, for each part.

    Raises:
        InputError: a label, or the data without labels, has only one text to split.
    """
    held_out = {each.texts for each in (*(val or ()), *(test or ()))}
    groups: dict[tuple[str, ...], list[LabelledText]] = defaultdict(list)
    for each in texts:
        if each.texts not in held_out:
            groups[each.texts].append(each)
    counts = Counter(label for group in groups.values() for label in group[0].labels)
    strata: dict[str, list[list[LabelledText]]] = defaultdict(list)
    for group in groups.values():
        labels = group[0].labels if by_label else ()
        strata[min(labels, key=counts.__getitem__, default="")].append(group)
    parts: dict[str, list[LabelledText]] = {"val": [], "test": [], "train": []}
    given = {"val": val, "test": test}
    missing = [name for name, part in given.items() if part is None]
    rng = np.random.default_rng(42)
    for label, members in strata.items():
        if missing and len(members) == 1:
            (only,) = members
            raise InputError(
                f"{only[0].place}: {shortened(label)} is the label of this text alone; a label needs"
                f" {len(missing) + 1} different texts, or give --val-data and --test-data"
            )
        order = rng.permutation(len(members)).tolist()
        size = max(1, round(HELD_OUT * len(members)))
        for name in missing:
            if len(order) > 1:
                chosen, order = order[:size], order[size:]
                parts[name] += [each for index in chosen for each in members[index]]
        parts["train"] += [each for index in sorted(order) for each in members[index]]
    if not parts["train"]:
        raise InputError("data has no text that neither val_data nor test_data has")
    return Splits(parts["train"], val or parts["val"], test or parts["test"])


def labels_in(texts: Texts) -> list[str]:
    """The labels of texts in the order in which they first occur."""
    return list(dict.fromkeys(label for each in texts for label in each.labels))


def class_targets(texts: Texts, labels: Sequence[str]) -> Targets:
    """A row for each text with 1 for each of its labels.

    Raises:
        InputError: a text has another label.
    """
    numbers = {label: number for number, label in enumerate(labels)}
    targets = np.zeros((len(texts), len(labels)), np.float32)
    for row, each in zip(targets, texts, strict=True):
        for label in each.labels:
            if label not in numbers:
                raise InputError(
                    f"{each.place}: the label is {shortened(label)}, which is not a label of the"
                    f" training texts: {shortened(', '.join(labels))}"
                )
            row[numbers[label]] = 1
    return targets


def number_targets(texts: Texts) -> Targets:
    """The number that is the label of each text.

    Raises:
        InputError: a label is not a finite number.
    """
    numbers = np.zeros((len(texts), 1), np.float32)
    for row, each in zip(numbers, texts, strict=True):
        try:
            row[0] = float(each.labels[0])
        except ValueError:
            row[0] = np.nan
        if not np.isfinite(row[0]):
            raise InputError(
                f"{each.place}: the label is {shortened(each.labels[0])}; with --regression it must"
                " be a number"
            )
    return numbers
