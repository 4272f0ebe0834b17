"""Texts given by a user, and texts as examples: tokens as labels, and the model's prediction after each token."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Float

from transformer_jax.errors import InputError, visible
from transformer_jax.fit.trainer import TrainerModule
from transformer_jax.tasks import byte_text
from transformer_jax.tasks.byte_text import Ids, pad
from transformer_jax.tasks.tokenization import Tokenizer
from transformer_jax.tasks.translation.pairs import PairInputs
from transformer_jax.training.inspected_example import (
    Answer,
    InspectedExample,
    answer_of,
    probabilities_of,
)

Text = TypeVar("Text")
Logits: TypeAlias = Float[np.ndarray, "T V"]


class TextTrainer(TrainerModule):
    """A trainer whose inputs are a text, or a list of texts."""

    def is_one(self, inputs: Any) -> bool:
        return isinstance(inputs, str | bytes)

    def read_examples(self, words: Sequence[str]) -> list[InspectedExample]:
        """Examples of texts, one for each argument of a command line.

        Raises:
            InputError: as `examples`.
        """
        return self.read_lines(words)

    def read_lines(self, lines: Sequence[str]) -> list[InspectedExample]:
        return self.examples(list(lines))  # all at once


def texts_in(inputs: object, *kinds: type[Text]) -> list[Text]:
    """Return a text, or the texts of a list, as a list.

    Args:
        inputs: a user's inputs.
        kinds: types of texts: `str`, or also `bytes`.

    Raises:
        InputError: `inputs` is neither a text nor a list of texts.
    """
    if isinstance(inputs, kinds):
        return [inputs]
    texts = list(inputs) if isinstance(inputs, Iterable) else []
    if not texts or not all(isinstance(text, kinds) for text in texts):
        raise InputError(f"inputs is {inputs!r:.60}; it must be a text or a list of texts")
    return texts


def encode_all(
    texts: Sequence[str | bytes],
    longest: int,
    tokenizer: Tokenizer,
    *,
    counts_bytes: bool = False,
    before: Sequence[int] = (),
) -> list[Ids]:
    """Ids of texts, each after the tokens `before`.

    Args:
        texts: texts.
        longest: maximum number of tokens, or of bytes with `counts_bytes`, those in `before` included.
        tokenizer: tokenizer of the model.
        counts_bytes: whether the length of a text is that of its bytes.
        before: tokens before each text, after which it may be empty.

    Raises:
        InputError: as `Tokenizer.encode`; or a text is empty or too long.
    """
    encoded = [tokenizer.encode(text) for text in texts]
    sizes = [len(ids) for ids in encoded]
    if counts_bytes:
        sizes = [len(byte_text.encode(text)) for text in texts]
    unit = "bytes" if counts_bytes or tokenizer.num_bytes is None else "tokens"
    least = 1 - len(before)
    most = longest - len(before)
    for text, size in zip(texts, sizes, strict=True):
        if not least <= size <= most:
            raise InputError(
                f"the text {text[:40]!r} has {size} {unit}; it may have {least} to {most}"
            )
    return [np.array([*before, *ids], np.int32) for ids in encoded]


def text_examples(
    texts: Sequence[Ids],
    tokenizer: Tokenizer,
    following: Sequence[Ids] | None = None,
) -> list[InspectedExample]:
    """Examples of texts for a language model, padded at the right to one shape; no position sees the padding.

    Args:
        texts: tokens of the texts.
        tokenizer: tokenizer of the model.
        following: the actual next tokens of each text, if they are known.
    """
    rows = pad(texts, max(map(len, texts)), 0)
    examples = []
    for number, ids in enumerate(texts):
        places = [visible(label) for label in tokenizer.labels(ids)]
        example = InspectedExample(
            inputs=rows[[number]],
            labels=places,
            answer=partial(_most_probable, tokenizer, places, is_translation=False),
            title=visible(tokenizer.decode(ids)),
            expected=None if following is None else visible(tokenizer.decode(following[number])),
        )
        examples.append(example)
    return examples


def translation_examples(
    sources: Sequence[Ids],
    translations: Sequence[Ids],
    padded_length: Callable[[int], int],
    tokenizers: tuple[Tokenizer, Tokenizer],
    expected: Sequence[str] | None = None,
) -> list[InspectedExample]:
    """Examples of texts with the translations that the decoder reads; all are padded to one shape.

    Args:
        sources: ids of the texts.
        translations: ids of the translations, with or without the end token.
        padded_length: function from the length of a text to its padded length.
        tokenizers: tokenizers of the texts and of the translations.
        expected: the right translations, if they are known.
    """
    source_tokenizer, target_tokenizer = tokenizers
    targets = [
        np.array([target_tokenizer.start, *ids[ids != target_tokenizer.end]])
        for ids in translations
    ]
    source_rows = pad(sources, padded_length(max(map(len, sources))), source_tokenizer.pad)
    target_rows = pad(targets, padded_length(max(map(len, targets))), target_tokenizer.pad)
    examples = []
    for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
        target_labels = ["start", *target_tokenizer.labels(target[1:])]
        answer = partial(_most_probable, target_tokenizer, target_labels, is_translation=True)
        example = InspectedExample(
            inputs=PairInputs(source_rows[[number]], target_rows[[number]]),
            labels={"encoder": source_tokenizer.labels(source), "decoder": target_labels},
            answer=answer,
            found=partial(answer, chosen=translations[number]),
            title=source_tokenizer.decode(source),
            expected=None if expected is None else expected[number],
        )
        examples.append(example)
    return examples


def _most_probable(
    tokenizer: Tokenizer,
    places: Sequence[str],
    logits: Logits,
    *,
    is_translation: bool,
    chosen: Ids | None = None,
) -> Answer:
    """The most probable token after each of the labelled positions.

    A translation is a text of its own, which ends before the first end token; `chosen` are its tokens if a search has
    found them. Other tokens follow the given text each, so they have no joint probability.
    """
    predicted = logits[: len(places)].argmax(-1)
    names = tokenizer.labels(predicted)  # together, since a character may have several bytes
    answer = answer_of(logits, places, str)
    parts = [
        part._replace(text=visible(name)) for part, name in zip(answer.parts, names, strict=True)
    ]
    ids = predicted if chosen is None else chosen
    text = tokenizer.decode(ids)
    if not is_translation:
        return Answer(visible(text), None, parts)
    is_before_end = ~np.logical_or.accumulate(ids == tokenizer.end)
    length = is_before_end.sum() + 1  # with the end token
    probabilities = probabilities_of(logits[: len(ids)])  # [T V]
    probabilities_of_ids = probabilities[np.arange(len(ids)), ids]  # [T]
    return Answer(text, math.prod(probabilities_of_ids[:length].tolist()), parts)
