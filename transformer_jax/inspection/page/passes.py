"""What the page shows of an example, computed: maps, answers without each head, lens, attribution, alike examples."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.activations import patch
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.inspected_call import Attention, activations, attentions, model_call
from transformer_jax.inspection.logit_attribution import attribute_logits, logit_lens
from transformer_jax.inspection.names import residual_stream
from transformer_jax.inspection.patches import zero
from transformer_jax.training.example_viewer import ExampleViewer
from transformer_jax.training.inspected_example import Answer, InspectedExample, softmax
from transformer_jax.trees import Inputs, Variables

MOST = 5  # neighbours of an example
COMPARED = 256  # examples of the test set
FIRST_INPUT = "layers.0.input"  # end of the name of a stack's input
MAX_WEIGHTS = 50_000_000  # of attention in one example; a browser holds no more


class Heads(NamedTuple):
    """The heads of one attention in an example, without the padding."""

    kind: str  # `encoder`, `decoder`, `cross`
    queries: list[str]  # T labels
    keys: list[str]  # S labels
    maps: Float[np.ndarray, "H _T _S"]
    zeroed: list[tuple[Answer, float]]  # without each head: the answer, and its `answer_change`


class Passes(NamedTuple):
    """What is computed of one example; the first axis of arrays is no batch any more."""

    answer: Answer
    heads: list[Heads]  # of each attention
    lens: np.ndarray  # [L+1 T C], the output after each of the last stack's layers
    attribution: dict[str, np.ndarray]  # of the answer's logits, by component [T] or [H T]; empty where there is none


class InspectedPasses:
    """The passes of a model that the page needs, compiled once for each shape of inputs.

    Args:
        bound: the model with its variables.
        arguments: from the inputs of an example to those of the model.
        inputs: of an example, by which the activations are found.

    Raises:
        InputError: the model has no attention or no blocks, more weights than a page can hold, or gives no array.
    """

    def __init__(self, bound: Inspected, arguments: Callable[[Inputs], tuple[object, ...]], inputs: Inputs) -> None:
        self.bound, self.arguments = bound, arguments
        call = model_call(bound.model, bound.variables, arguments(inputs), {})
        if not isinstance(output := jax.eval_shape(call), jax.ShapeDtypeStruct):
            raise InputError(f"{type(bound.model).__name__} gives a {type(output).__name__}; it must be an array")
        self.has_positions = len(output.shape) == 3  # [B T C], not [B C]
        found = activations(call)
        self.attentions = attentions(found)
        self.stream = residual_stream(each.name for each in found)
        starts = (each for each in found if each.name.endswith(FIRST_INPUT))
        # Positions of each stack.
        self.lengths = {each.name.removesuffix(FIRST_INPUT).rstrip("."): each.shape[1] for each in starts}
        self.last_stack = self.stream[0].removesuffix(FIRST_INPUT).rstrip(".")
        if (count := sum(math.prod(each.shape) for each in found if each.name.endswith(".weights"))) > MAX_WEIGHTS:
            raise InputError(f"the example has {count:,} attention weights; a page may have {MAX_WEIGHTS:,}")

    def of(self, example: InspectedExample) -> Passes:
        """All that is shown of an example."""
        inputs = self.arguments(example.inputs)
        names = [attention.named("weights") for attention in self.attentions]
        output, seen = self.bound.capture(inputs, names)
        whole, lens = _floats(output), np.asarray(self.bound.apply(logit_lens, *inputs)[:, 0], np.float32)
        pairs = zip(self.attentions, names, strict=True)
        heads = [self._heads(example, whole, attention, _floats(seen[name])) for attention, name in pairs]
        return Passes(example.answer(whole), heads, lens, self._attribution(inputs))

    def _heads(
        self, example: InspectedExample, whole: np.ndarray, attention: Attention, maps: Float[np.ndarray, "H T S"]
    ) -> Heads:
        stacks = attention.stack, "encoder" if attention.kind == "cross" else attention.stack
        queries, keys = (example.labels_of(*pair) for pair in zip(stacks, maps.shape[1:], strict=True))
        length = len(example.answer(whole).parts)
        outputs = (self._without(example, attention, head) for head in range(attention.num_heads))
        zeroed = [(example.answer(output), answer_change(whole, output, length)) for output in outputs]
        return Heads(attention.kind, queries, keys, maps[:, : len(queries), : len(keys)], zeroed)

    def _without(self, example: InspectedExample, attention: Attention, head: int) -> np.ndarray:
        """Output of the pass without one head: all of them at once would not fit into memory."""
        heads = {
            each.head_outputs: zero(heads=jnp.arange(each.num_heads) == (head if each == attention else -1))
            for each in self.attentions
        }
        return _floats(self.bound.patch(self.arguments(example.inputs), heads))

    def _attribution(self, inputs: tuple[object, ...]) -> dict[str, np.ndarray]:
        """What each component writes into the logit of the answer at each position; nothing if no sum gives it."""
        try:
            parts = self.bound.apply(_answer_attribution, *inputs)
        except InputError:
            return {}
        return {name: np.asarray(part[..., 0, :, 0], np.float32) for name, part in parts.items()}

    def final_mean(self, example: InspectedExample) -> tuple[np.ndarray, Float[np.ndarray, " D"]]:
        """Output, and mean of the final residual stream over the shown positions, scaled to length 1."""
        output, seen = self.bound.capture(self.arguments(example.inputs), self.stream[-1:])
        stream = _floats(seen[self.stream[-1]])
        mean = stream[: len(example.labels_of(self.last_stack, len(stream)))].mean(0)
        return _floats(output), mean / max(float(np.linalg.norm(mean)), 1e-12)


def _floats(batch: Array) -> np.ndarray:
    """The only row of a batch."""
    return np.asarray(batch[0], np.float32)


def _answer_attribution(model: nn.Module, variables: Variables, *inputs: object) -> dict[str, Array]:
    """`attribute_logits` of the largest logit at each position `[B, T, 1]`, or of the only one of an input."""

    def with_positions(logits: Array) -> Array:
        return logits if logits.ndim == 3 else logits[:, None]

    said = with_positions(patch(model, variables, *inputs, patches={})).argmax(-1, keepdims=True)
    return attribute_logits(
        model, variables, *inputs, of=lambda logits: jnp.take_along_axis(with_positions(logits), said, -1)
    )


def answer_change(output: Float[np.ndarray, "*T C"], other: Float[np.ndarray, "*T C"], length: int) -> float:
    """How far the probability of what the whole model says moves in another pass: the mean over the positions.

    A position of which the model knows little counts little, as its answer has a small probability. Where an output
    is one number, it is how far that moves.

    Args:
        output: of the whole model.
        other: of the other pass, such as one without a head.
        length: number of positions that count.
    """
    output, other = np.atleast_2d(output)[:length], np.atleast_2d(other)[:length]
    if output.shape[-1] > 1:
        output, other = softmax(output), softmax(other)
    said = output.argmax(-1)[:, None]  # [T 1]
    moved = np.take_along_axis(other, said, -1) - np.take_along_axis(output, said, -1)
    return float(np.abs(moved).mean())


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
        near = [n for n in np.argsort(-cosines, kind="stable") if compared[n].title != example.title][:MOST]
        found.append([Neighbour(compared[n], compared[n].answer(outputs[n]), float(cosines[n])) for n in near])
    return found
