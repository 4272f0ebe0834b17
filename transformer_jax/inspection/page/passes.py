"""Compute what the page shows of an example: maps, outputs without each head, lens, attribution, final stream."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from transformer_jax.errors import MAX_SIZE, InputError
from transformer_jax.inspection.activations import patch
from transformer_jax.inspection.attention_gradients import gradient_products
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.inspected_call import (
    OUTPUTS,
    Attention,
    Captured,
    attentions,
    forward_pass,
)
from transformer_jax.inspection.logit_attribution import (
    attribute_logits,
    components_of,
    logit_lens,
)
from transformer_jax.inspection.names import residual_stream
from transformer_jax.inspection.patches import Patch, zero
from transformer_jax.training.inspected_example import InspectedExample, probabilities_of
from transformer_jax.trees import Inputs, Variables

FIRST_INPUT = "layers.0.input"  # end of the name of a stack's input
MAX_WEIGHTS = 50_000_000  # attention weights of one example; more are too much for a browser


Output: TypeAlias = Float[np.ndarray, "*T C"]  # of a model, for one example


class Passes(NamedTuple):
    """Results for one example, without the batch axis."""

    output: Output
    maps: list[Float[np.ndarray, "H T S"]]  # of each attention
    lens: np.ndarray  # [L+1 T C], the output after each of the last stack's layers
    # of the answer's logits, by component [T] or [H T]; empty if they have none
    attribution: dict[str, np.ndarray]


class InspectedPasses:
    """The passes of a model that the page needs, compiled once per input shape.

    Args:
        bound: the model with its variables.
        arguments: function from an example's inputs to the model's inputs.
        inputs: inputs of an example, from which the names of the activations are found.

    Raises:
        InputError: the model has no attention or no blocks, too many attention weights, or does not return an array.
    """

    def __init__(
        self, bound: Inspected, arguments: Callable[[Inputs], tuple[object, ...]], inputs: Inputs
    ) -> None:
        self.bound = bound
        self.arguments = arguments
        call = forward_pass(bound.model, bound.variables, arguments(inputs), {})
        output, _ = jax.eval_shape(call.run)
        if not isinstance(output, jax.ShapeDtypeStruct):
            raise InputError(
                f"{type(bound.model).__name__} returns a {type(output).__name__}; it must be an"
                " array"
            )
        self.has_positions = len(output.shape) == 3  # [B T C], not [B C]
        sites = call.sites()
        self.attentions = attentions(sites)
        self.stream = residual_stream(sites)
        self.lengths = {  # number of positions of each stack
            name.removesuffix(FIRST_INPUT).rstrip("."): site.shape[1]
            for name, site in sites.items()
            if name.endswith(FIRST_INPUT)
        }
        *_, self.last_stack = self.lengths
        weights = [name for name in sites if name.endswith(".weights")]
        num_weights = sum(math.prod(sites[name].shape) for name in weights)
        if num_weights > MAX_WEIGHTS:
            raise InputError(
                f"the example has {num_weights:,} attention weights; a page can have"
                f" {MAX_WEIGHTS:,}"
            )

    def run(self, example: InspectedExample) -> Passes:
        """Run the passes of the whole model."""
        inputs = self.arguments(example.inputs)
        names = [attention.named("weights") for attention in self.attentions]
        output, activations = self.bound.capture(inputs, names)
        maps = [_floats(activations[name]) for name in names]
        lens = np.asarray(self.bound.apply(logit_lens, *inputs)[:, 0], np.float32)
        attribution = self._attribution(inputs, np.asarray(output).argmax(-1))
        return Passes(_floats(output), maps, lens, attribution)

    def without_heads(
        self, example: InspectedExample, attention: Attention
    ) -> Float[np.ndarray, "H *T C"]:
        """Outputs without each head of one attention; those of all attentions at once would not fit in memory."""
        numbers = np.arange(attention.head_outputs.size("heads") or 0)
        # a number that does not exist selects no head
        heads = {
            each.named(OUTPUTS): np.where(each == attention, numbers, MAX_SIZE)
            for each in self.attentions
        }
        outputs = self.bound.apply(_without_heads, *self.arguments(example.inputs), heads=heads)
        return np.asarray(outputs[:, 0], np.float32)

    def _attribution(
        self, inputs: tuple[object, ...], predicted: Int[np.ndarray, "..."]
    ) -> dict[str, np.ndarray]:
        """What each component adds to the answer's logit at each position; empty if the logit is not a sum.

        If the logit belongs to the whole input, it is estimated by gradients for each position of the stream.
        """
        try:
            parts = self.bound.apply(_answer_attribution, *inputs, predicted=predicted)
        except InputError:
            if self.has_positions:
                return {}
            parts = self.bound.apply(_token_attribution, *inputs, predicted=predicted)
        else:  # [B T 1] or [H B T 1]
            parts = jax.tree.map(lambda part: jnp.moveaxis(part[..., 0], -2, 0), parts)
        return jax.tree.map(_floats, parts)

    def final_mean(self, example: InspectedExample) -> tuple[np.ndarray, Float[np.ndarray, " D"]]:
        """Output, and mean direction of the final residual stream over the shown positions, scaled to length 1.

        Each position has equal weight, because in some models the first is a hundred times as large as the others.
        """
        output, activations = self.bound.capture(self.arguments(example.inputs), self.stream[-1:])
        stream = _floats(activations[self.stream[-1]])  # [T D]
        positions = list(example.shown(self.last_stack, len(stream)))
        mean_direction = _of_norm_one(stream[positions]).mean(0)
        return _floats(output), _of_norm_one(mean_direction)


def _floats(batch: Array) -> np.ndarray:
    """The only row of a batch."""
    return np.asarray(batch[0], np.float32)


def _of_norm_one(vectors: Float[np.ndarray, "*leading D"]) -> Float[np.ndarray, "*leading D"]:
    """Vectors divided by their norms; zeros stay zeros."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12))


def _without_heads(
    model: nn.Module, variables: Variables, *inputs: object, heads: dict[str, Int[Array, " N"]]
) -> Float[Array, "N B ..."]:
    """Outputs of N passes, in each of which one head of each attention is set to zero, if it exists."""

    def without(patches: dict[str, Patch]) -> Array:
        return patch(model, variables, *inputs, patches=patches)

    return jax.vmap(without)({name: zero(heads=numbers) for name, numbers in heads.items()})


def _answer_attribution(
    model: nn.Module, variables: Variables, *inputs: object, predicted: Int[Array, "..."]
) -> Captured:
    """Attribute the logit of the answer at each position, or of an input's only answer, `[B, T, 1]`."""
    chosen = predicted.reshape(len(predicted), -1, 1)

    def logits_of_answer(logits: Array) -> Array:
        return jnp.take_along_axis(logits.reshape(*chosen.shape[:2], -1), chosen, -1)

    return attribute_logits(model, variables, *inputs, of=logits_of_answer)


def _token_attribution(
    model: nn.Module, variables: Variables, *inputs: object, predicted: Int[Array, " B"]
) -> Captured:
    """Gradient × activation of what each component writes at each token `[B, T]` or `[B, H, T]`.

    The gradient is that of the answer's logit, minus the mean of all logits.
    """
    call = forward_pass(model, variables, inputs, {})

    def margin(logits: Array) -> Array:
        mean = logits.mean(-1) if logits.shape[-1] > 1 else 0.0
        logits_of_answers = jnp.take_along_axis(logits, predicted[:, None], -1)[:, 0]  # [B]
        return (logits_of_answers - mean).sum()

    products = gradient_products(call, components_of(call.sites()), margin)
    return jax.tree.map(lambda product: product.sum(-1), products)


def answer_change(output: Output, other: Output, rows: Sequence[int]) -> float:
    """Mean absolute change, over positions, of the probability of the whole model's answer in another pass.

    Positions at which the model is unsure count little, because their answers have small probabilities. If the output
    is one number, its own change is measured.

    Args:
        output: output of the whole model.
        other: output of the other pass, such as one without a head.
        rows: positions to include; none includes all (for an answer without parts).
    """
    output, other = np.atleast_2d(output), np.atleast_2d(other)  # [T C]
    if rows:
        output = output[rows]
        other = other[rows]
    if output.shape[-1] > 1:
        output = probabilities_of(output)
        other = probabilities_of(other)
    answers = output.argmax(-1)[:, None]  # [T 1]; 0 if the output is one number
    changes = np.take_along_axis(other - output, answers, -1)
    return float(np.abs(changes).mean())
