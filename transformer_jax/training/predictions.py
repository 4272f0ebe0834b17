"""Answers of a model as a table: a line for each example, tabs between the columns."""

from collections.abc import Sequence

from transformer_jax.training.inspected_example import Answer, InspectedExample

PREDICTIONS = "predictions.tsv"
MAX_PREDICTIONS = 1_000  # of a test set, in a run's directory


def prediction_table(examples: Sequence[InspectedExample], answers: Sequence[Answer]) -> str:
    """Input, expected and given answer, its probability, and whether it is right (1 or 0; empty where nobody knows).

    Tabs and line breaks inside a cell are written as in Python, `\\t` and `\\n`.
    """
    rows = [("input", "expected", "answer", "probability", "right")]
    for example, answer in zip(examples, answers, strict=True):
        probability = "" if answer.probability is None else f"{answer.probability:.6g}"
        right = "" if example.expected is None else str(int(answer.text == example.expected))
        rows.append((example.title, example.expected or "", answer.text, probability, right))
    return "".join("\t".join(map(_in_one_cell, row)) + "\n" for row in rows)


def _in_one_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
