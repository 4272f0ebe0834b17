"""The inspection page of a model without a trainer, for one input."""

import functools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import check_arguments, check_offset
from transformer_jax.errors import InputError, check_value
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.page.page import Page, page_of
from transformer_jax.inspection.page.passes import InspectedPasses
from transformer_jax.inspection.page.show import Labels, grid_frame
from transformer_jax.inspection.page.token_text import token_text
from transformer_jax.inspection.page.view import coloured
from transformer_jax.inspection.patching.patch_grid import RESTORED
from transformer_jax.outside_files import Json
from transformer_jax.training.inspected_example import (
    Answer,
    InspectedExample,
    Label,
    answer_by_position,
)
from transformer_jax.trees import Variables

MOST_ACTIVE = 5  # features shown per token
TITLE = 80  # maximum length of an example's title
PATCHING = (
    "Activation patching: the fraction of the metric that the residual stream after each layer, at"
    " each position, restores in the pass of the corrupted input; 1 is everything, 0 nothing. The"
    " metric is"
)

# One input, or several in a tuple.
ModelInputs: TypeAlias = ArrayLike | Sequence[int] | tuple[object, ...]
Names = Sequence[str] | Callable[[int], str | None]
Features = Callable[[Array], ArrayLike]  # from activations [B T D] to features [B T F]


@check_arguments
def inspect_model(
    model: nn.Module,
    variables: Variables,
    tokens: ModelInputs,
    labels: Labels | Mapping[str, Labels] | None = None,
    *,
    vocabulary: Names | None = None,
    corrupted: ModelInputs | None = None,
    position: int = -1,
    features: Mapping[str, Features] | None = None,
    title: str | None = None,
) -> Page:
    """Make a page that shows what a model does with one input, as `inspection_page` does for a task.

    Its tabs show the heads, the logit lens, and the attribution of the answer's logits (if they are a sum of
    components, see `attribute_logits`), and, if given, patching with `corrupted`, and `features`.

    Args:
        model, variables: as in `transformer_jax.capture`: causal, masked, an encoder-decoder, or your own.
        tokens: the model's input, `[1, T]` or `[T]`; a tuple if it takes several, each a batch of one.
        labels: labels of the positions; for an encoder-decoder, labels by `encoder` and `decoder`. None: the tokens.
        vocabulary: names of the tokens or classes by number, such as `tokenizer.id_to_token`, which are shown as text
            (`ĠParis` as ` Paris`); None: the numbers.
        corrupted: another input of the same shapes, whose pass is patched with activations of `tokens`; the metric is
            the logit of the answer to `tokens` minus that of the answer to `corrupted`, if they differ.
        position: position of the answer whose logits are the patching metric.
        features: functions, by the name of an activation, from the activation to features `[B, T, F]`, such as the
            `encode` of a sparse autoencoder.
        title: title of the page; None for the model's name.

    Raises:
        InputError: as in `inspection_page`; there is more than one input; the labels are not one per position;
            `corrupted` has other shapes, or the same metric; or there is no such position or activation.
    """
    inputs = _one_input("tokens", tokens)
    # an example's inputs are the model's own
    passes = InspectedPasses(Inspected(model, variables), tuple, inputs)
    name = functools.partial(_name, vocabulary or ())  # of a token or class
    # a model with one answer for the whole input names its classes, not its tokens
    names = _labels(passes, inputs, labels, name if passes.has_positions else str)
    text = " ".join(map(str, next(iter(names.values()), [])))  # of the first stack
    example = InspectedExample(
        inputs=inputs,
        labels=names,
        answer=functools.partial(_answer, name),
        title=textwrap.shorten(text, TITLE, placeholder="…"),
    )
    patching = None
    if corrupted is not None:
        patching = _patching(passes, example, corrupted, position, name)
    shown = [_features(passes, example, *pair) for pair in (features or {}).items()]
    return page_of(
        passes,
        title or type(model).__name__,
        [example],
        more={"patching": patching, "features": shown},
    )


def _one_input(what: str, given: ModelInputs) -> tuple[object, ...]:
    """The inputs of a model, each a batch of one."""
    inputs: list[Any] = []
    for array in given if isinstance(given, tuple) else (given,):
        row: Any = np.asarray(array) if isinstance(array, list) else array
        inputs.append(row[None] if np.ndim(row) == 1 else row)
    shape: tuple[int, ...] = np.shape(inputs[0]) if inputs else ()
    if len(shape) < 2 or shape[0] != 1:
        raise InputError(f"{what} is {shape}; a page shows one input: [1, T] or [T]")
    return tuple(inputs)


def _name(vocabulary: Names, number: int) -> str:
    """The text of a token or class; its number if the vocabulary has no name for it."""
    name = None
    if callable(vocabulary):
        name = vocabulary(number)
    elif number < len(vocabulary):
        name = vocabulary[number]
    return token_text(str(number if name is None else name))


def _labels(
    passes: InspectedPasses,
    inputs: tuple[object, ...],
    labels: Labels | Mapping[str, Labels] | None,
    name: Callable[[int], str],
) -> Mapping[str, Sequence[Label]]:
    """Labels of the positions of each stack: the given labels, or the tokens."""
    if labels is None:
        texts = {}
        for stack, array in zip(passes.lengths, inputs, strict=False):
            row = np.asarray(array)[0]
            if row.dtype.kind in "iu":  # tokens, not features
                texts[stack] = list(map(name, row.tolist()))
        return texts
    first_stack, *_ = passes.lengths
    given = labels if isinstance(labels, Mapping) else {first_stack: labels}
    lengths = {stack: len(of_stack) for stack, of_stack in given.items()}
    if lengths != passes.lengths:
        raise InputError(
            f"labels has {lengths} labels; there must be one for each position: {passes.lengths}"
        )
    return {stack: list(of_stack) for stack, of_stack in given.items()}


def _answer(name: Callable[[int], str], output: Float[np.ndarray, "*T C"]) -> Answer:
    """The most probable token or class at each position; a text as a whole gets no probability."""
    answer = answer_by_position(output, name)
    return answer if len(answer.parts) == 1 else answer._replace(probability=None)


def _patching(
    passes: InspectedPasses,
    example: InspectedExample,
    corrupted: ModelInputs,
    position: int,
    name: Callable[[int], str],
) -> Json:
    """Patching of each stack's residual stream, with the example's answer as the metric."""
    clean = example.inputs
    corrupted = _one_input("corrupted", corrupted)
    predictions = []  # for the clean and the corrupted input
    for inputs in (clean, corrupted):
        output = passes.bound.patch(inputs, {})  # [1 T C], or [1 C]
        logits = np.atleast_2d(np.asarray(output[0], np.float32))  # [T C]
        length = len(logits)
        check_offset("position", position, -length, length - 1)
        predictions.append(int(logits[position].argmax()))
    right, wrong = predictions
    note = f"{PATCHING} the logit of “{name(right)}”"
    if wrong != right:
        note += f" minus that of “{name(wrong)}”"
    note += f" at position {position % length}."

    def metric(output: Array) -> Array:
        logits = jnp.atleast_2d(output[0])[position]  # [C]
        return logits[right] - logits[wrong] if wrong != right else logits[right]

    frames = []
    for stack, num_positions in passes.lengths.items():
        site = f"{stack}.layers.?.output".lstrip(".")
        (values,), _ = passes.bound.patch_grid(clean, corrupted, site, metric=metric).frames()
        labels = example.labels_of(stack, num_positions)
        frames.append(grid_frame(stack, values, "layer", labels, RESTORED))
    return {"note": note, "frames": frames}


def _features(
    passes: InspectedPasses, example: InspectedExample, name: str, function: Features
) -> Json:
    """Features that are among the most active at any position, with their values at all positions."""
    check_value(f"features[{name!r}]", function, Callable)
    _, seen = passes.bound.capture(example.inputs, [name])
    if name not in seen:
        raise InputError(
            f"features has {name!r}; it must be the name of one activation, not a pattern"
        )
    values = np.asarray(function(seen[name]), np.float32)
    if values.ndim != 3 or values.shape[:2] != seen[name].shape[:2]:
        raise InputError(
            f"features of {name} are {values.shape}; they must be [B, T, F] of {seen[name].shape}"
        )
    length, width = values[0].shape
    most = min(MOST_ACTIVE, width)
    most_active = np.argsort(-values[0], axis=1, kind="stable")[:, :most]  # [T most]
    numbers = np.unique(most_active)
    lines = values[0][:, numbers].T  # [numbers T]
    stack = name.partition(".")[0]
    if stack not in passes.lengths:
        stack = passes.last_stack
    places = example.labels_of(stack, length)
    if len(places) != length:
        places = list(map(str, range(length)))
    return {
        "name": name,
        "width": width,
        "most": most,
        "places": places,
        "numbers": numbers.tolist(),
        **coloured(lines),
        # colour scale of each feature
        "fulls": [coloured(line)["full"] for line in lines],
    }
