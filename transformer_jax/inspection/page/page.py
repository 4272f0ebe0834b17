"""The inspection page of a model and some examples, for a task or for a model without one."""

import base64
import dataclasses
import html
import json
import math
import re
from collections.abc import Sequence
from typing import TypeAlias

import jax
import numpy as np

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.fitted.fitted import Fitted, fitted_of
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.inspected_call import OUTPUTS
from transformer_jax.inspection.page.passes import InspectedPasses, Passes, answer_change
from transformer_jax.inspection.page.view import (
    View,
    coloured,
    filled,
    packed,
    rounded,
    stored_map,
    view_text,
)
from transformer_jax.outside_files import Json
from transformer_jax.training.inspected_example import Answer, InspectedExample
from transformer_jax.training.task import Task
from transformer_jax.trees import variables_of

FIRST = 4  # test examples that are shown if none are given
MOST = 5  # neighbours per example
COMPARED = 256  # test examples among which neighbours are searched
# an example, the model's output for it, and the mean direction of its final residual stream
Known: TypeAlias = tuple[InspectedExample, np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True, repr=False)
class Page(View):
    """An interactive page, with the examples that it shows."""

    examples: Sequence[InspectedExample]
    answers: Sequence[Answer]  # to the examples


@check_arguments
def inspection_page(
    trainer: Task | Fitted,
    examples: Sequence[InspectedExample] | None = None,
    title: str | None = None,
) -> Page:
    """Make a page that shows what a trainer's model does with some examples.

    Args:
        trainer: a trainer with parameters, or what `fit` has returned.
        examples: as `trainer.examples(inputs)` returns them; None for the first examples of its test set.
        title: title of the page; None for the task's name.

    Raises:
        InputError: there are no examples, no parameters or no attention; as in `trainer.answers`; or these answers
            differ from the answers read off the model's output, on which the page is based.
    """
    fitted = fitted_of(trainer)
    task = fitted.task
    examples = chosen_examples(task, examples, FIRST)
    params, _ = task.in_dtype(jax.device_put(fitted.params, fitted.compiled.first_device), ())
    passes = InspectedPasses(
        Inspected(task.model, variables_of(params)),
        lambda rows: tuple(task.in_dtype({}, task.model_inputs(rows))[1]),
        examples[0].inputs,
    )
    page = page_of(passes, title or task.name, examples, compared=_compared(task))
    predicted = fitted.answers(examples) if task.overrides_predict_alone else page.answers
    if [answer.text for answer in predicted] != [answer.text for answer in page.answers]:
        raise InputError(
            f"{type(task).__name__}.predict and the model's output disagree; override"
            " `examples`, too"
        )
    return page


def chosen_examples(
    task: Task, examples: Sequence[InspectedExample] | None, count: int
) -> Sequence[InspectedExample]:
    """Return the given examples, or the first examples of the task's test set.

    Raises:
        InputError: there are none.
    """
    if examples is None:
        examples = task.test_examples(range(min(count, len(task.test_set))))
    if not examples:
        raise InputError("examples is empty; there must be at least one example")
    return examples


def page_of(
    passes: InspectedPasses,
    title: str,
    examples: Sequence[InspectedExample],
    compared: Sequence[InspectedExample] = (),
    more: Json | None = None,
) -> Page:
    """Make a page from passes and examples.

    Args:
        passes: passes of the model.
        title: title of the page.
        examples: examples to show.
        compared: examples among which similar ones are searched.
        more: contents of further tabs.
    """
    blobs: list[str] = []
    answers, entries = [], []
    compared_examples = [
        (example_to_compare, *passes.final_mean(example_to_compare))
        for example_to_compare in compared
    ]
    for number, example in enumerate(examples):
        results = passes.run(example)
        answer = example.answer_to(results.output)
        neighbours = _neighbours(passes, example, compared_examples) if compared_examples else []
        content = _content(passes, example, results, answer, blobs)
        content |= {"neighbours": neighbours, **(more or {})}
        # A user's task may put NumPy numbers into its answers.
        blobs.append(packed(json.dumps(content, default=float).encode()))
        entries.append({"title": example.title or f"example {number}", "blob": len(blobs) - 1})
        answers.append(answer)
    count = sum(leaf.size for leaf in jax.tree.leaves(passes.bound.variables["params"]))
    about = f"{type(passes.bound.model).__name__} with {count:,} parameters"
    body = filled("page.html", title=html.escape(title), about=html.escape(about))
    text = view_text(title, {"view": "page", "examples": entries}, blobs, body)
    return Page(text, examples, answers)


def _content(
    passes: InspectedPasses,
    example: InspectedExample,
    results: Passes,
    answer: Answer,
    blobs: list[str],
) -> Json:
    """Everything the page shows of an example, as JSON for its script; the maps are stored in the blobs."""
    lens = []
    for number, output in enumerate(results.lens):
        name = f"layer {number - 1}" if number else "input"
        lens.append({"name": name, "answer": _answer(example.answer_to(output, is_changed=True))})
    length = len(answer.parts)
    rows = list(range(length))  # of the output, one for each part of the answer
    if example.real is not None and results.output.ndim == 2:
        rows = np.flatnonzero(example.real)[:length].tolist()
        length = len(example.real)
    places = _places(answer, example.labels_of(passes.last_stack, length))
    columns = dict(zip(rows, places, strict=True))  # of the attribution
    if not passes.has_positions and results.attribution:
        size = next(iter(results.attribution.values())).shape[-1]
        if size > 1:  # the attribution of an answer to a whole text has a column for each token
            columns = example.shown(passes.last_stack, size)
    return {
        "title": example.title,
        "expected": example.expected,
        "places": places,
        "answer": _answer(answer),
        # This answer is read off the output, as are those of changed passes.
        "unchanged": _answer(example.answer_to(results.output, is_changed=True)),
        "kinds": _kinds(passes, example, results, rows, blobs),
        "lens": lens,
        "attribution": _attribution(results.attribution, columns),
        "images": _images(example),
    }


def _places(answer: Answer, labels: list[str]) -> list[str]:
    """Names of the answer's positions: the example's labels if the answer only numbers them."""
    places = [part.place for part in answer.parts]
    numbers = [str(number) for number in range(len(places))]
    if places == numbers and len(labels) == len(places):
        return labels
    return places


def _kinds(
    passes: InspectedPasses,
    example: InspectedExample,
    results: Passes,
    rows: Sequence[int],
    blobs: list[str],
) -> list[Json]:
    """Kinds of attention, in the order of the pass, with the maps of each layer and the answers without each head."""
    kinds: dict[str, Json] = {}
    images = example.pixels()
    for attention, maps in zip(passes.attentions, results.maps, strict=True):
        _, num_queries, num_keys = maps.shape
        stack_of_keys = "encoder" if attention.kind == "cross" else attention.stack
        # labels by position
        queries = example.shown(attention.stack, num_queries)
        keys = example.shown(stack_of_keys, num_keys)
        has_images = images is not None and len(queries) == len(keys) == len(images)
        new = {
            "name": attention.kind,
            "queries": list(queries.values()),
            "keys": list(keys.values()),
            "images": has_images,
            "layers": [],
        }
        kind = kinds.setdefault(attention.kind, new)
        outputs = passes.without_heads(example, attention)
        kind["layers"].append(
            {
                "map": stored_map(blobs, maps[:, list(queries)][..., list(keys)]),
                "ablated": [
                    _answer(example.answer_to(output, is_changed=True)) for output in outputs
                ],
                "changes": [answer_change(results.output, output, rows) for output in outputs],
            }
        )
    return list(kinds.values())


def _attribution(parts: dict[str, np.ndarray], columns: dict[int, str]) -> Json | None:
    """Contributions by component and position, summed over heads, and those of each head; None if there are none."""
    if not parts:
        return None
    heads, sums = {}, {}
    for name, array in parts.items():
        component = _component(name)
        contributions = array[..., list(columns)]
        if name.endswith(OUTPUTS):  # [H columns]
            heads[component] = contributions
            contributions = contributions.sum(0)
        sums[component] = contributions
    # All heads at all positions share the colour scale.
    full = coloured(np.concatenate([part.ravel() for part in heads.values()]))["full"]
    return {
        "rows": list(sums),
        "columns": list(columns.values()),
        **coloured(np.stack(list(sums.values()))),
        "heads": {
            "rows": list(heads),
            "values": list(map(rounded, heads.values())),
            "full": full,
        },
    }


def _component(name: str) -> str:
    """Label of a component: `decoder.layers.0.cross_attention.head_outputs` is `0 cross-attention`, or `embeddings`."""
    if name.endswith("layers.0.input"):
        return "embeddings"
    return re.sub(r"^.*layers\.(\d+)\.|\.[a-z_]*$", r"\1 ", name).strip().replace("_", "-")


def _answer(answer: Answer) -> Json:
    return {**answer._asdict(), "parts": [[part.text, part.probability] for part in answer.parts]}


def _images(example: InspectedExample) -> Json | None:
    """The example's pixels."""
    images = example.pixels()
    if images is None:
        return None
    number, height, width, *rgb = images.shape
    channels = math.prod(rgb)  # 1 for grey images, which have no axis for it
    pixels = base64.b64encode(images.tobytes()).decode("ascii")
    return {
        "number": number,
        "height": height,
        "width": width,
        "channels": channels,
        "pixels": pixels,
    }


def _compared(task: Task) -> Sequence[InspectedExample]:
    """The first examples of the task's test set; none if its data is not available."""
    try:
        return chosen_examples(task, None, COMPARED)
    except (InputError, NotImplementedError, OSError):
        return []


def _neighbours(
    passes: InspectedPasses, example: InspectedExample, known: Sequence[Known]
) -> list[Json]:
    """The example's nearest neighbours among known examples, without itself, the nearest first."""
    _, mean = passes.final_mean(example)
    cosines = [float(vector @ mean) for *_, vector in known]  # both have length 1
    neighbours: list[Json] = []
    for number in np.argsort(np.negative(cosines), kind="stable").tolist():
        other, output, _ = known[number]
        if _are_same(other, example):
            continue
        if len(neighbours) == MOST:
            break
        answer = other.answer_to(output)
        neighbours.append(
            {
                "title": other.title or f"test set {number}",
                "expected": other.expected,
                "images": _images(other),
                "cosine": cosines[number],
                "text": answer.text,
                "probability": answer.probability,
            }
        )
    return neighbours


def _are_same(one: InspectedExample, other: InspectedExample) -> bool:
    """Compare titles, because inputs may be padded differently; if neither example has one, compare the inputs."""
    if one.title or other.title:
        return one.title == other.title
    return jax.tree.all(jax.tree.map(np.array_equal, one.inputs, other.inputs))
