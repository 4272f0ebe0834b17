"""Human-readable examples: the model's inputs, labels of positions, the answer as text."""

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, UInt8

from transformer_jax.argument_checks import as_array, check_scores
from transformer_jax.errors import InputError, meant, shortened
from transformer_jax.trees import Inputs, short_repr

WHOLE_NUMBER = re.compile(r"-?\d{1,9}")  # fits into 32 bits
# Characters that some programs treat as the end of a line or of a table cell, with their Python escapes.
ESCAPES = {ord(letter): repr(letter)[1:-1] for letter in "\\\t\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"}
Label = str | int  # of a position: its character or number, or its index
Images = UInt8[np.ndarray, "N height width *rgb"]
Naming = Callable[[int], str]  # gives the name of a token or class


class AnswerPart(NamedTuple):
    """The answer at one position."""

    place: str  # the position's label
    text: str  # the model's prediction
    probability: float | None  # of the prediction; None if the output is not a distribution


class Answer(NamedTuple):
    """A model's output as text."""

    text: str
    probability: float | None  # of the whole answer
    parts: Sequence[AnswerPart]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InspectedExample:
    """One example, with what is needed to show what the model does with it.

    There are labels only for the positions to show, not for padding. An `answer` of your own gets the output of all
    positions.
    """

    def __repr__(self) -> str:
        return short_repr(self)

    inputs: Inputs  # a batch of one, from `prepare`
    # the same batch from the data set, for `predict`; only of a task that has no `examples`
    given: Inputs = None
    # Label of each position: of a single sequence, or of the sequence of each stack, `encoder` and `decoder`. Positions
    # without labels show their indices.
    labels: Sequence[Label] | Mapping[str, Sequence[Label]] = ()
    # Which positions of a single sequence are not padding, and have the labels. None: the first, one for each label.
    real: Bool[np.ndarray, " T"] | None = None
    answer: Callable[[np.ndarray], Answer] = dataclasses.field(
        default_factory=lambda: answer_by_position
    )
    # The answer that a search, such as beam search, has found with the parameters of its time; None: `answer`, which is
    # also that of a changed model.
    found: Callable[[np.ndarray], Answer] | None = None
    title: str = ""  # by which a user selects the example
    expected: str | None = None  # the right answer, if it is known
    # answers that are right; None: only `expected`; empty if an answer is not simply right or wrong
    rights: Collection[str] | None = None
    # Shown beside the labels of a sequence; a function reads them from their files when they are shown.
    images: Images | Callable[[], Images] | None = None

    def answer_to(self, output: np.ndarray, *, is_changed: bool = False) -> Answer:
        """Return the answer for an output of the model, or of the model with a change.

        Raises:
            InputError: a number is NaN or +inf, or all numbers of a row are -inf.
        """
        largest = np.atleast_1d(output).max(-1, keepdims=True)
        check_scores(largest, f"the output for {self.title!r} has numbers")
        is_single = not isinstance(self.labels, Mapping)
        function = getattr(self.answer, "func", self.answer)  # of a `partial`, or the answer itself
        if function is answer_by_position and is_single and np.ndim(output) == 2:
            shown_positions = list(self.shown("", len(output)))
            output = output[shown_positions]
        if is_changed or self.found is None:
            return self.answer(output)
        return self.found(output)

    def is_right(self, answer: Answer) -> bool | None:
        """Return whether the answer is right; None if this is unknown."""
        rights = [self.expected] if self.rights is None else self.rights
        if self.expected is None or not rights:
            return None
        return answer.text in rights

    def pixels(self) -> Images | None:
        """Return the images, if there are any."""
        return self.images() if callable(self.images) else self.images

    def labels_of(self, stack: str, length: int) -> list[str]:
        """Return the labels of a stack's positions to show, at most `length`."""
        return list(self.shown(stack, length).values())

    def shown(self, stack: str, length: int) -> dict[int, str]:
        """Return the positions to show, and their labels, among `length` positions of a stack.

        If all positions of a single sequence are labelled, or `real` has another length, an axis of another length,
        such as that of learned queries, gets indices instead.
        """
        labels = self.labels
        if isinstance(labels, Mapping):
            labels = labels.get(stack, ())
        elif self.real is not None:
            real = self.real if len(self.real) == length else np.ones(length)
            positions = np.flatnonzero(real).tolist()
            labels = labels if len(labels) == len(positions) else positions
            return dict(zip(positions, map(str, labels), strict=True))
        elif len(labels) != length:
            lengths = [np.shape(leaf)[1:2] for leaf in jax.tree.leaves(self.inputs)]
            if lengths[:1] == [(len(labels),)]:  # all positions are labelled
                labels = ()
        return dict(zip(range(length), map(str, labels or range(length)), strict=False))


def answer_by_position(output: Float[np.ndarray, "... C"], name: Naming = str) -> Answer:
    """Return the most probable class at each position `[T, C]`, or of a single output `[C]`, with its probability.

    Single numbers, C = 1, are shown as they are.

    Args:
        output: the model's output for an example.
        name: returns the name of a class.
    """
    rows = np.asarray(output, np.float32).reshape(-1, np.shape(output)[-1])
    if rows.shape[-1] == 1:
        texts = [f"{value:.5g}" for value in rows[:, 0].tolist()]
        parts = [AnswerPart(str(place), text, None) for place, text in enumerate(texts)]
        return Answer(" ".join(texts), None, parts)
    return answer_of(rows, range(len(rows)), name)


def answer_of(
    logits: Float[np.ndarray, "T C"],
    places: Sequence[Label],
    name: Naming,
) -> Answer:
    """Return the most probable class at each labelled position, by name.

    Args:
        logits: of all positions.
        places: labels of the first positions; the others are ignored.
        name: returns the name of a class.
    """
    probabilities = probabilities_of(logits[: len(places)])  # [T C]
    classes = probabilities.argmax(-1).tolist()
    largest = probabilities.max(-1).tolist()
    parts = [
        AnswerPart(str(place), name(number), probability)
        for place, number, probability in zip(places, classes, largest, strict=True)
    ]
    return Answer(" ".join(part.text for part in parts), math.prod(largest), parts)


def probabilities_of(logits: Float[np.ndarray, "... C"]) -> Float[np.ndarray, "... C"]:
    """Softmax of logits, in float64."""
    exponentials = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(-1, keepdims=True))


def with_expected(example: InspectedExample, targets: Inputs, name: Naming) -> InspectedExample:
    """Return an example of a task without `examples` with the answer that its integer targets name."""
    is_known = isinstance(targets, int | np.ndarray | np.integer) and np.ndim(targets) < 2
    if example.given is None or example.expected is not None or not is_known:
        return example
    numbers = np.ravel(targets)
    if example.real is not None and example.real.shape == numbers.shape:
        numbers = numbers[example.real]
    if not np.issubdtype(numbers.dtype, np.integer):
        return example
    return dataclasses.replace(example, expected=" ".join(map(name, numbers.tolist())))


def examples_in_batch(
    batch: Inputs,
    prepare: Callable[[Inputs], Inputs],
    name: Naming,
    real: Bool[ArrayLike, "B T"] | None,
) -> list[InspectedExample]:
    """Return the rows of a data set's batch as examples; the numbers of a single integer array are the labels.

    Args:
        batch: inputs from the data set.
        prepare: computes the inputs of the model.
        name: returns the name of a token or class.
        real: which positions are not padding; None for all.
    """
    arrays = jax.tree.map(lambda leaf: np.asarray(as_array("inputs", leaf)), batch)
    leaves = jax.tree.leaves(arrays)
    if not leaves or any(leaf.ndim == 0 for leaf in leaves):
        raise InputError(f"inputs is {batch!r:.60}; it must be a batch: arrays [B, ...]")
    first = leaves[0]
    is_sequence = len(leaves) == 1 and first.ndim == 2 and np.issubdtype(first.dtype, np.integer)

    def example_of(index: int) -> InspectedExample:
        row = jax.tree.map(lambda leaf: leaf[index : index + 1], arrays)
        real_of_row = None if real is None else np.asarray(real, bool)[index]
        labels: list[str] = []
        if is_sequence:
            numbers = first[index] if real_of_row is None else first[index, real_of_row]
            labels = [*map(name, numbers.tolist())]
        title = " ".join(labels) or f"example {index}"
        answer = partial(answer_by_position, name=name)
        return InspectedExample(
            inputs=prepare(row),
            given=row,
            labels=labels,
            real=real_of_row,
            title=title,
            answer=answer,
        )

    return [example_of(index) for index in range(len(first))]


def numbers_in(words: Sequence[str], vocabulary: Sequence[str] = ()) -> list[list[int]]:
    """Parse sequences of integers: a single one, or one for each word if some word holds several numbers.

    Args:
        words: of a command line.
        vocabulary: names of the numbers, which are written in their place; empty if there are none.

    Raises:
        InputError: a word is not in the vocabulary, or, without one, not an integer of at most 9 digits.
    """
    sequences = [word.replace(",", " ").split() for word in words]
    if all(len(sequence) == 1 for sequence in sequences):
        sequences = [[sequence[0] for sequence in sequences]]  # a number in each word
    numbers = {str(name): number for number, name in enumerate(vocabulary)}
    return [[_number(word, numbers) for word in sequence] for sequence in sequences]


def _number(word: str, numbers: Mapping[str, int]) -> int:
    if word in numbers:
        return numbers[word]
    if numbers:
        raise InputError(
            f"inputs holds {shortened(word)}, which is not in the vocabulary{meant(word, numbers)}"
        )
    if not WHOLE_NUMBER.fullmatch(word):
        raise InputError(
            f"inputs holds {shortened(word)}; it must hold whole numbers of at most 9 digits"
        )
    return int(word)


def prediction_table(answered: Iterable[tuple[InspectedExample, Answer]]) -> str:
    """Return a tab-separated table: input, expected answer, answer, probability, right (1 or 0; empty if unknown).

    Tabs and line breaks of any kind inside a cell are escaped as in Python: `\\t`, `\\n`.
    """
    rows = [("input", "expected", "answer", "probability", "right")]
    for example, answer in answered:
        probability = "" if answer.probability is None else f"{answer.probability:.6g}"
        is_right = example.is_right(answer)
        right = "" if is_right is None else str(int(is_right))
        rows.append((example.title, example.expected or "", answer.text, probability, right))
    return "".join("\t".join(map(in_one_cell, row)) + "\n" for row in rows)


def in_one_cell(text: str) -> str:
    """Escape the characters that would end the line or the cell."""
    return text.translate(ESCAPES)
