"""Translations as examples that can be looked into: bytes as labels, and what the decoder says after each byte."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.tasks.byte_text import END, PAD, START, decode, labels, pad
from transformer_jax.tasks.translation.padded_pairs import PairInputs
from transformer_jax.training.inspected_example import Answer, InspectedExample, answer_of, probability_of_all


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
            answer=_answer(read),
            title=decode(source),
            expected=None if expected is None else expected[number],
        )
        for number, (source, target) in enumerate(zip(sources, targets, strict=True))
    ]


def _answer(places: Sequence[str]) -> Callable[[np.ndarray], Answer]:
    """The most probable token after each of those that the decoder reads; the text ends before the first END."""

    def answer(logits: Float[np.ndarray, "T V"]) -> Answer:
        ids = logits[: len(places)].argmax(-1)
        parts = answer_of(logits, places, str).parts
        named = [part._replace(text=name) for part, name in zip(parts, labels(ids), strict=True)]
        ends = np.flatnonzero(ids == END)
        return Answer(decode(ids), probability_of_all(named[: int(ends[0]) + 1 if ends.size else None]), named)

    return answer


def is_right(logits: Float[np.ndarray, "B T V"], targets: Int[np.ndarray, "B T"]) -> list[bool]:
    """Whether greedy decoding gives the right translation: at each of its positions it says the next token."""
    found: list[bool] = ((logits.argmax(-1) == targets) | (targets == PAD)).all(-1).tolist()
    return found
