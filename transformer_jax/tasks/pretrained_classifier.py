"""Classifiers of HuggingFace Transformers with their tokenizers: texts, pairs of texts, or tokens in, classes out."""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from transformer_jax.errors import check_value
from transformer_jax.outside_files import Json
from transformer_jax.tasks.pretrained import PretrainedText
from transformer_jax.tasks.text_classes import SCORES, Classes, read_classes
from transformer_jax.tasks.text_examples import texts_in
from transformer_jax.training.inspected_example import Answer, InspectedExample

Given = tuple[str] | tuple[str, str]  # a text, or a pair of texts


class PretrainedClassifier(PretrainedText):
    """A pretrained classifier of texts, pairs of texts, or tokens, with its tokenizer.

    `predict` takes a text, a pair of texts as a tuple, or a list; on the command line, a tab separates a pair. It
    returns the class of a text; the score by a model with one class; the classes above 0.5 by name with their
    probabilities if a text may have any number of classes; or a `LabelledSpan` for each token that is not special.
    """

    # number of labels in the answer to a text; None: the most probable one alone
    top: int | None = None

    @functools.cached_property
    def classes(self) -> Classes:
        """How the logits become answers, by the model's files."""
        return read_classes(self.directory, self.model.num_classes)

    @property
    def ranks_labels(self) -> bool:
        """Whether the answer to a text is one or several of its labels, so that `top` has a meaning."""
        return self._takes_pairs and self.classes.problem != SCORES

    def model_inputs(self, inputs: Any) -> tuple[Any, ...]:
        arguments = super().model_inputs(inputs)
        return arguments if self.model.num_types else arguments[:2]

    def is_one(self, inputs: Any) -> bool:
        return isinstance(inputs, (str, tuple) if self._takes_pairs else str)

    def read_lines(self, lines: Sequence[str]) -> list[InspectedExample]:
        if not self._takes_pairs:
            return super().read_lines(lines)
        return self.examples([tuple(line.split("\t")) for line in lines])

    def answers(self, examples: Sequence[InspectedExample]) -> list[Answer]:
        rows = [(example.inputs[0][0], example.inputs[2][0]) for example in examples]
        pairs = zip(examples, self._logits(rows), strict=True)
        return [example.answer(logits) for example, logits in pairs]

    @property
    def _takes_pairs(self) -> bool:
        return bool(self.model.head == "classes")

    def _texts(self, inputs: object) -> list[Any]:
        texts = texts_in(inputs, str, tuple) if self._takes_pairs else texts_in(inputs, str)
        tuples = [(text,) if isinstance(text, str) else text for text in texts]
        return [check_value("inputs", each, Given) for each in tuples]

    def _example(self, text: Given) -> InspectedExample:
        encoded = self._encode(text)
        _, encoding = encoded
        return InspectedExample(
            inputs=(np.array([encoding.ids]), None, np.array([encoding.type_ids])),
            labels=self._names(encoding.ids),
            title="\t".join(text),
            answer=functools.partial(self.classes.answer, *encoded, top=self.top),
        )

    def _encode(self, text: Given, **options: bool) -> tuple[str, Any]:
        """The first text, and the encoding of both."""
        return text[0], self._encoding(text, self.tokenizer, **options)

    def _answers(self, texts: Sequence[tuple[str, Any]], seed: int, chosen: Json) -> list[Any]:
        rows = [(encoding.ids, encoding.type_ids) for _, encoding in texts]
        pairs = zip(texts, self._logits(rows), strict=True)
        return [self.classes.value(*encoded, logits) for encoded, logits in pairs]

    def _logits(self, inputs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray]:
        """Logits of the classes of each text, or of each of its tokens and padding, from its tokens and types."""
        texts, types = zip(*inputs, strict=True)
        given = types if self.model.num_types else None
        return self._encoder.answers(self.params, texts, given)
