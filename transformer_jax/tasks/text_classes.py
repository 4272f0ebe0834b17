"""Answers of classifiers: the class, the classes or the score of a text, or a label for each of its tokens."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.inspection.page.token_text import token_text
from transformer_jax.training.inspected_example import (
    Answer,
    AnswerPart,
    answer_of,
    probabilities_of,
)
from transformer_jax.weights.huggingface.config_keys import IDENTITY, TORCH_ACTIVATIONS, ConfigKeys
from transformer_jax.weights.huggingface.pretrained import CONFIG, SENTENCE_CONFIG

THRESHOLD = 0.5  # of a class's probability, if a text may have any number of classes
ONE_CLASS, ANY_CLASSES, SCORES = PROBLEMS = (
    "single_label_classification",
    "multi_label_classification",
    "regression",
)

Logits = Float[np.ndarray, "*T C"]


class LabelledSpan(NamedTuple):
    """A part of a text with its label; `start` and `end` count the characters of the text."""

    text: str
    label: str
    probability: float
    start: int
    end: int


class Classes(NamedTuple):
    """How the logits of classes become answers.

    A text comes with its encoding by the library `tokenizers`, and with the logits of its classes, or of the classes of
    its tokens, which padding may follow.
    """

    names: Mapping[str, str]  # by number, as text
    problem: str  # one of `PROBLEMS`
    # from logits to probabilities or scores, if a text has not just one class
    score: Callable[[Any], Any]

    def value(self, text: str, encoding: Any, logits: Logits) -> Any:
        """The answer for programs: labelled tokens, a class, a score, or the scores of classes by name."""
        if logits.ndim > 1:
            return self._tokens(text, encoding, logits)
        if self.problem == ONE_CLASS:
            return self._name(int(logits.argmax()))
        scores = np.asarray(self.score(logits.astype(np.float32))).tolist()
        if len(scores) == 1:
            return scores[0]
        threshold = THRESHOLD if self.problem == ANY_CLASSES else -np.inf
        return {
            self._name(number): score for number, score in enumerate(scores) if score > threshold
        }

    def answer(self, text: str, encoding: Any, logits: Logits, top: int | None = None) -> Answer:
        """The answer to show; for tokens the entities, and as parts the labels of all tokens.

        With `top`, it is this number of labels of the text with their probabilities.
        """
        if logits.ndim > 1:
            entities = entities_of(text, self._tokens(text, encoding, logits))
            lines = [f"{span.label}: {span.text} ({span.probability:.3g})" for span in entities]
            places = [token_text(token) for token in encoding.tokens]
            return Answer("; ".join(lines), None, answer_of(logits, places, self._name).parts)
        if top is not None:
            is_one = self.problem == ONE_CLASS
            probabilities = probabilities_of(logits) if is_one else np.asarray(self.score(logits))
            order = np.argsort(-probabilities, kind="stable")[:top].tolist()
            lines = [f"{self._name(number)} {probabilities[number]:.3g}" for number in order]
            return Answer("; ".join(lines), None, [])
        if self.problem == ONE_CLASS:
            return answer_of(logits[None], ["text"], self._name)
        value = self.value(text, encoding, logits)
        if isinstance(value, dict):
            line = ", ".join(f"{name} {score:.5g}" for name, score in value.items())
        else:
            line = f"{value:.5g}"
        return Answer(line, None, [AnswerPart("text", line, None)])

    def _name(self, number: int) -> str:
        return str(self.names.get(str(number), f"LABEL_{number}"))  # as in `transformers`

    def _tokens(self, text: str, encoding: Any, logits: Logits) -> list[LabelledSpan]:
        """The tokens that are not special, with their most probable labels."""
        probabilities = probabilities_of(logits[: len(encoding.ids)])
        rows = zip(encoding.offsets, encoding.special_tokens_mask, probabilities, strict=True)
        spans = []
        for (start, end), is_special, row in rows:
            if not is_special:
                label = self._name(int(row.argmax()))
                spans.append(LabelledSpan(text[start:end], label, float(row.max()), start, end))
        return spans


def entities_of(text: str, tokens: list[LabelledSpan]) -> list[LabelledSpan]:
    """Join neighbouring tokens of an entity, with their mean probability; tokens with the label `O` are left out.

    As with the strategy `simple` of the pipeline in `transformers`, an entity ends where its name changes and before a
    label that starts with `B-`.
    """
    groups: list[list[LabelledSpan]] = []
    for token in tokens:
        name = token.label.removeprefix("B-").removeprefix("I-")
        if not groups or groups[-1][0].label != name or token.label.startswith("B-"):
            groups.append([])
        groups[-1].append(token._replace(label=name))
    entities = []
    for group in groups:
        name, start, end = group[0].label, group[0].start, group[-1].end
        if name != "O":
            probability = float(np.mean([token.probability for token in group]))
            entities.append(LabelledSpan(text[start:end], name, probability, start, end))
    return entities


def read_classes(directory: Path, num_classes: int) -> Classes:
    """Read the meaning of a classifier's logits from `config.json`, and of a single one from a cross-encoder's files.

    Without a function in the files, a single logit is passed through the sigmoid, except for a regression.

    Raises:
        InputError: a file cannot be read, or has an unknown value.
    """
    keys = ConfigKeys.of_file(directory / CONFIG)
    names = keys.take("id2label", Mapping | None, None) or {}
    problem = keys.one_of("problem_type", None, *PROBLEMS) or ONE_CLASS
    score = TORCH_ACTIVATIONS[IDENTITY] if problem == SCORES else jax.nn.sigmoid
    if num_classes == 1:
        problem = SCORES
        score = _function_of_score(directory, keys) or score
    return Classes(names, problem, score)


def _function_of_score(directory: Path, keys: ConfigKeys) -> Callable[..., Any] | None:
    """Return the function that a cross-encoder's files name for its logit; newer files win."""
    settings = {
        "activation_fn": keys.take("sbert_ce_default_activation_function", str | None, None),
        **(keys.take("sentence_transformers", Mapping | None, None) or {}),
        **ConfigKeys.of_file(directory / SENTENCE_CONFIG).others(),
    }
    merged = ConfigKeys(settings, str(directory))
    name = merged.one_of("activation_fn", None, *TORCH_ACTIVATIONS)
    return TORCH_ACTIVATIONS.get(name)
