"""What the page shows of an example, computed: maps, outputs without each head and after each layer, alike examples."""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.activations import capture
from transformer_jax.inspection.inspected_call import Attention, HeadTable, activations, attentions, model_call
from transformer_jax.inspection.lens import logit_lens
from transformer_jax.inspection.names import residual_stream
from transformer_jax.inspection.patching.ablation import ablate_heads
from transformer_jax.training.example_viewer import ExampleViewer
from transformer_jax.training.inspected_example import Answer, InspectedExample, softmax
from transformer_jax.trees import Inputs, Params

MOST = 5  # neighbours of an example
COMPARED = 256  # examples of the test set
MAX_WEIGHTS = 50_000_000  # of attention in one example; a browser holds no more


class Passes(NamedTuple):
    """Arrays of one example, whose first axis is no batch any more."""

    output: np.ndarray  # [T C]
    labels: list[tuple[list[str], list[str]]]  # of the queries and keys of each attention that are shown
    maps: list[np.ndarray]  # of each attention [H T S], without the padding
    ablated: dict[str, np.ndarray]  # by kind the output [L H T C] with each head zeroed
    lens: np.ndarray  # [L+1 T C], the output after each of the last stack's layers


class InspectedPasses:
    """The passes of a trained model that the page needs, compiled once for each shape of inputs.

    Args:
        trainer: with parameters.
        inputs: of an example, by which the activations are found.

    Raises:
        InputError: the model has no attention or no blocks, more weights than a page can hold, or no parameters.
    """

    def __init__(self, trainer: ExampleViewer, inputs: Inputs) -> None:
        self.trainer = trainer
        self.params = jax.device_put(trainer.params, trainer.first_device)
        model, variables, *arguments = self._of_model(self.params, inputs)
        call = model_call(model, variables, arguments, {})
        self.attentions: list[Attention] = attentions(call)
        found = activations(call)
        self.stream = residual_stream(each.name for each in found)
        self.last_stack = re.sub(r"\.?layers\.0\.input$", "", self.stream[0])
        if (count := sum(math.prod(each.shape) for each in found if each.name.endswith(".weights"))) > MAX_WEIGHTS:
            raise InputError(f"the example has {count:,} attention weights; a page may have {MAX_WEIGHTS:,}")
        self._all = jax.jit(self._all_passes)
        self._last = jax.jit(self._last_residual)

    def of(self, example: InspectedExample) -> Passes:
        """All that is shown of an example."""
        output, maps, ablated, lens = jax.device_get(self._all(self.params, example.inputs))
        by_kind = {kind: outputs[:, :, 0] for kind, outputs in ablated.items()}
        labels = [self._labels(example, *pair) for pair in zip(self.attentions, maps, strict=True)]
        shown = [of_layer[0, :, : len(t), : len(s)] for of_layer, (t, s) in zip(maps, labels, strict=True)]
        return Passes(output[0], labels, shown, by_kind, lens[:, 0])

    def _labels(self, example: InspectedExample, attention: Attention, maps: np.ndarray) -> tuple[list[str], list[str]]:
        """Labels of an attention's queries and of its keys."""
        stacks = attention.stack, "encoder" if attention.kind == "cross" else attention.stack
        queries, keys = (example.labels_of(*pair) for pair in zip(stacks, maps.shape[2:], strict=True))
        return queries, keys

    def final_mean(self, example: InspectedExample) -> tuple[np.ndarray, Float[np.ndarray, " D"]]:
        """Output, and mean of the final residual stream over the shown positions, scaled to length 1."""
        output, stream = jax.device_get(self._last(self.params, example.inputs))
        mean = stream[0, : len(example.labels_of(self.last_stack, stream.shape[1]))].mean(0)
        return output[0], mean / max(float(np.linalg.norm(mean)), 1e-12)

    def _of_model(self, params: Params, inputs: Inputs) -> tuple[Any, ...]:
        """Model, variables and arguments, for inputs that `prepare` gave."""
        params, arguments = self.trainer.in_dtype(params, self.trainer.model_inputs(inputs))
        return self.trainer.model, {"params": params}, *arguments

    def _all_passes(self, params: Params, inputs: Inputs) -> tuple[Array, list[Array], HeadTable, Array]:
        of_model = self._of_model(params, inputs)
        names = [attention.named("weights") for attention in self.attentions]
        output, captured = capture(*of_model, names=names)
        maps = [captured[name].astype(jnp.float32) for name in names]
        ablated = ablate_heads(*of_model, metric=self._floats)
        return self._floats(output), maps, ablated, self._floats(logit_lens(*of_model))

    def _last_residual(self, params: Params, inputs: Inputs) -> tuple[Array, Array]:
        output, captured = capture(*self._of_model(params, inputs), names=self.stream[-1:])
        return self._floats(output), captured[self.stream[-1]].astype(jnp.float32)

    def _floats(self, output: object) -> Array:
        if not isinstance(output, jax.Array):
            name = type(self.trainer.model).__name__
            raise InputError(f"{name} gives a {type(output).__name__}; it must be an array")
        return output.astype(jnp.float32)


def answer_changes(
    output: Float[np.ndarray, "*T C"], ablated: Float[np.ndarray, "L H *T C"], length: int
) -> Float[np.ndarray, "L H"]:
    """How far the probability of what the whole model says moves without each head: the mean over the positions.

    A position of which the model knows little counts little, as its answer has a small probability. Where an output
    is one number, it is how far that moves.

    Args:
        output: of the whole model.
        ablated: without each head.
        length: number of positions that count.
    """
    if output.ndim == 1:
        output, ablated = output[None], ablated[:, :, None]
    output, ablated = output[:length], ablated[:, :, :length]
    if output.shape[-1] > 1:
        output, ablated = softmax(output), softmax(ablated)
    said = output.argmax(-1)[:, None]  # [T 1]
    moved = np.take_along_axis(ablated, said[None, None], -1) - np.take_along_axis(output, said, -1)
    return np.asarray(np.abs(moved).mean((2, 3)))


class Neighbour(NamedTuple):
    """An alike example."""

    example: InspectedExample
    answer: Answer
    cosine: float  # of the two means, over positions, of the final residual streams


def compared_examples(trainer: ExampleViewer) -> list[InspectedExample]:
    """The first examples of the task's test set; none where the task has no data of its own here."""
    try:
        return trainer.test_examples(range(min(COMPARED, len(trainer.test_set))))
    except (InputError, NotImplementedError, OSError):
        return []


def neighbours(
    passes: InspectedPasses, examples: Sequence[InspectedExample], compared: Sequence[InspectedExample]
) -> list[list[Neighbour]]:
    """For each example those of the compared ones that are nearest, the nearest first; itself is none."""
    if not compared:
        return [[] for _ in examples]
    outputs, vectors = zip(*map(passes.final_mean, compared), strict=True)
    found = []
    for example in examples:
        cosines = np.stack(vectors) @ passes.final_mean(example)[1]
        others = [index for index in np.argsort(-cosines, kind="stable") if compared[index].title != example.title]
        found.append(
            [
                Neighbour(compared[index], compared[index].answer(outputs[index]), float(cosines[index]))
                for index in others[:MOST]
            ]
        )
    return found
