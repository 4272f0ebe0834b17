"""Texts as examples that can be looked into: bytes as labels, and the byte that the model expects after each."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.tasks.byte_text import decode, labels
from transformer_jax.training.inspected_example import Answer, InspectedExample, answer_of


def text_examples(
    texts: Sequence[Int[np.ndarray, " _"]], following: Sequence[Int[np.ndarray, " _"]] | None = None
) -> list[InspectedExample]:
    """Examples of texts, all padded behind their ends to one shape, which no position sees.

    Args:
        texts: their bytes.
        following: the byte that comes after each of them, where it is known.
    """
    length = max(map(len, texts))
    return [
        InspectedExample(
            inputs=np.pad(ids, (0, length - len(ids)))[None],
            labels=(places := [visible(label) for label in labels(ids)]),
            answer=_answer(places),
            title=visible(decode(ids)),
            expected=None if following is None else visible(decode(following[number])),
        )
        for number, ids in enumerate(texts)
    ]


def visible(text: str) -> str:
    """A text in one line: what is not printable is written as in Python, a line feed as `\\n`."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _answer(places: Sequence[str]) -> Callable[[np.ndarray], Answer]:
    """The most probable byte after each of the text's. As each follows the text itself, they have no probability."""

    def answer(logits: Float[np.ndarray, "T V"]) -> Answer:
        ids = logits[: len(places)].argmax(-1)
        parts = answer_of(logits, places, str).parts
        named = [part._replace(text=visible(name)) for part, name in zip(parts, labels(ids), strict=True)]
        return Answer(visible(decode(ids)), None, named)

    return answer
