"""Examples of the test set that the model sees as most alike: by the cosine of their final residual streams."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.page.passes import InspectedPasses
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.inspected_example import Answer, InspectedExample

MOST = 5  # neighbours of an example
COMPARED = 256  # examples of the test set
AT_ONCE = 64  # that are computed together


class Neighbour(NamedTuple):
    """An alike example."""

    example: InspectedExample
    answer: Answer
    cosine: float  # of the two means, over positions, of the final residual streams


def compared_examples(trainer: Evaluator) -> list[InspectedExample]:
    """The first examples of the task's test set; none where the task has no data of its own here."""
    try:
        return trainer.test_examples(range(min(COMPARED, len(trainer.test_set))))
    except (InputError, NotImplementedError, OSError):
        return []


def neighbours(
    passes: InspectedPasses, examples: Sequence[InspectedExample], compared: Sequence[InspectedExample]
) -> list[list[Neighbour]]:
    """For each example those of the compared ones that are nearest, the nearest first; itself is none."""
    if not compared or not passes.residuals:
        return [[] for _ in examples]
    vectors, outputs = _means(passes, compared)
    found = []
    for example, own in zip(examples, _means(passes, examples)[0], strict=True):
        cosines = vectors @ own
        others = [index for index in np.argsort(-cosines, kind="stable") if compared[index].title != example.title]
        found.append(
            [
                Neighbour(compared[index], compared[index].answer(outputs[index]), float(cosines[index]))
                for index in others[:MOST]
            ]
        )
    return found


def _means(
    passes: InspectedPasses, examples: Sequence[InspectedExample]
) -> tuple[Float[np.ndarray, "N D"], list[np.ndarray]]:
    """Mean over the positions of each example's final residual stream, of length 1; and the outputs."""
    vectors: list[np.ndarray] = [np.zeros(0)] * len(examples)
    outputs: list[np.ndarray] = [np.zeros(0)] * len(examples)
    for members in _batches(examples):
        rows = [examples[index].inputs for index in members]
        rows += [rows[0]] * (AT_ONCE - len(rows) if len(examples) >= AT_ONCE else 0)  # one size, one compilation
        batch = jax.tree.map(lambda *leaves: np.concatenate(leaves), *rows)
        output, residual = passes.last_residual(batch)
        for row, index in enumerate(members):
            shown = len(examples[index].labels_of(passes.last_stack, residual.shape[1]))
            mean = residual[row, :shown].mean(0)
            vectors[index] = mean / max(float(np.linalg.norm(mean)), 1e-12)
            outputs[index] = output[row]
    return np.stack(vectors), outputs


def _batches(examples: Sequence[InspectedExample]) -> Iterator[list[int]]:
    """Numbers of examples whose inputs have the same shapes."""
    groups: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        groups.setdefault(str(jax.tree.map(np.shape, example.inputs)), []).append(index)
    for members in groups.values():
        for start in range(0, len(members), AT_ONCE):
            yield members[start : start + AT_ONCE]
