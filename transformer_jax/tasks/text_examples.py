"""Texts that a user gives, and texts as examples: bytes as labels, and what the model says after each byte."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.errors import InputError
from transformer_jax.tasks.byte_text import END, START, decode, encode, labels, pad, visible
from transformer_jax.tasks.translation.padded_pairs import PairInputs
from transformer_jax.training.inspected_example import (
    Answer,
    AnswerPart,
    InspectedExample,
    answer_of,
    probability_of_all,
)
from transformer_jax.training.trainer import TrainerModule

Text = TypeVar("Text")


class TextTrainer(TrainerModule):
    """A trainer whose inputs are a text, or a list of texts."""

    def is_one(self, inputs: str | bytes | Sequence[str | bytes]) -> bool:
        return isinstance(inputs, str | bytes)

    def read_examples(self, words: Sequence[str]) -> list[InspectedExample]:
        """Texts, each a word of a command line.

        Raises:
            InputError: as `examples`.
        """
        return self.examples(list(words))


def texts_in(inputs: object, *kinds: type[Text]) -> list[Text]:
    """A text, or the texts of a list, as a list.

    Args:
        inputs: a user's.
        kinds: of texts: `str`, or `bytes` too.

    Raises:
        InputError: `inputs` is neither.
    """
    given = [inputs] if isinstance(inputs, kinds) else list(inputs) if isinstance(inputs, Iterable) else []
    texts = [text for text in given if isinstance(text, kinds)]
    if not texts or len(texts) < len(given):
        raise InputError(f"inputs is {inputs!r:.60}; it must be a text or a list of texts")
    return texts


def encode_all(texts: Sequence[str | bytes], longest: int) -> list[Int[np.ndarray, " _"]]:
    """Ids of texts.

    Raises:
        InputError: as `encode`; or a text is empty, or has more than `longest` bytes.
    """
    found = list(map(encode, texts))
    for text, ids in zip(texts, found, strict=True):
        if not 1 <= len(ids) <= longest:
            raise InputError(f"the text {text[:40]!r} has {len(ids)} bytes; it may have 1 to {longest}")
    return found


def text_examples(
    texts: Sequence[Int[np.ndarray, " _"]], following: Sequence[Int[np.ndarray, " _"]] | None = None
) -> list[InspectedExample]:
    """Examples of texts for a language model, all padded behind their ends to one shape, which no position sees.

    Args:
        texts: their bytes.
        following: the byte that comes after each of them, where it is known.
    """
    length = max(map(len, texts))
    return [
        InspectedExample(
            inputs=np.pad(ids, (0, length - len(ids)))[None],
            labels=(places := [visible(label) for label in labels(ids)]),
            answer=partial(_next_bytes, places),
            title=visible(decode(ids)),
            expected=None if following is None else visible(decode(following[number])),
        )
        for number, ids in enumerate(texts)
    ]


def translation_examples(
    sources: Sequence[Int[np.ndarray, " _"]],
    translations: Sequence[Int[np.ndarray, " _"]],
    padded_length: Callable[[int], int],
    expected: Sequence[str] | None = None,
) -> list[InspectedExample]:
    """Examples of texts and of the translations that the decoder reads; all are padded to one shape.

    Args:
        sources: ids of the texts.
        translations: ids of the translations, with or without END.
        padded_length: of a text, by its length.
        expected: the right translations, if they are known.
    """
    targets = [np.concatenate([[START], ids[ids != END]]) for ids in translations]
    source_length, target_length = (padded_length(max(map(len, texts))) for texts in (sources, targets))
    return [
        InspectedExample(
            inputs=PairInputs(pad([source], source_length), pad([target], target_length)),
            labels={"encoder": labels(source), "decoder": (read := ["start", *labels(target[1:])])},
            answer=partial(_translation, read),
            title=decode(source),
            expected=None if expected is None else expected[number],
        )
        for number, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]


def _next_bytes(places: Sequence[str], logits: Float[np.ndarray, "T V"]) -> Answer:
    """The most probable byte after each of the text's. As each follows the text itself, they have no probability."""
    ids, parts = _most_probable(places, logits)
    return Answer(visible(decode(ids)), None, parts)


def _translation(places: Sequence[str], logits: Float[np.ndarray, "T V"]) -> Answer:
    """The most probable token after each of those that the decoder reads; the text ends before the first END."""
    ids, parts = _most_probable(places, logits)
    ends = np.flatnonzero(ids == END)
    return Answer(decode(ids), probability_of_all(parts[: int(ends[0]) + 1 if ends.size else None]), parts)


def _most_probable(
    places: Sequence[str], logits: Float[np.ndarray, "T V"]
) -> tuple[Int[np.ndarray, " _"], list[AnswerPart]]:
    """The most probable id after each of the first positions, and its name with its probability."""
    ids = logits[: len(places)].argmax(-1)
    parts = answer_of(logits, places, str).parts
    return ids, [part._replace(text=visible(name)) for part, name in zip(parts, labels(ids), strict=True)]
