"""The page on a model and some examples, of a task or of a model alone."""

import dataclasses
import html
import json
from collections.abc import Sequence

import jax

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected import Inspected
from transformer_jax.inspection.page.contents import content_of
from transformer_jax.inspection.page.passes import InspectedPasses, compared_examples, neighbours
from transformer_jax.inspection.page.view import View, filled, packed, packed_map, view_text
from transformer_jax.outside_files import Json
from transformer_jax.training.example_viewer import ExampleViewer
from transformer_jax.training.inspected_example import Answer, InspectedExample
from transformer_jax.trees import Inputs

FIRST = 4  # examples of the test set that are shown where none are given


@dataclasses.dataclass(frozen=True)
class Page(View):
    """A page to explore, with the examples that it shows."""

    examples: Sequence[InspectedExample]
    answers: Sequence[Answer]  # to the examples


@check_arguments
def inspection_page(
    trainer: ExampleViewer, examples: Sequence[InspectedExample] | None = None, title: str | None = None
) -> Page:
    """Make a page that shows what a trainer's model does with some examples.

    Args:
        trainer: with parameters.
        examples: as `trainer.examples(inputs)` gives them; None for the first ones of its test set.
        title: of the page; the task's name if None.

    Raises:
        InputError: there are no examples or no parameters, or the model has no attention to show.
    """
    examples = chosen_examples(trainer, examples, FIRST)
    passes = passes_of(trainer, examples[0].inputs)
    return page_of(passes, title or trainer.name, examples, compared=compared_examples(trainer))


def chosen_examples(
    trainer: ExampleViewer, examples: Sequence[InspectedExample] | None, count: int
) -> Sequence[InspectedExample]:
    """The examples that were given, or the first ones of the task's test set.

    Raises:
        InputError: there are none.
    """
    if examples is None:
        examples = trainer.test_examples(range(min(count, len(trainer.test_set))))
    if not examples:
        raise InputError("examples is empty; there must be at least one example")
    return examples


def passes_of(trainer: ExampleViewer, inputs: Inputs) -> InspectedPasses:
    """The passes of a trainer's model, in the type in which it computes.

    Raises:
        InputError: as `InspectedPasses`, or there are no parameters.
    """
    params, _ = trainer.in_dtype(jax.device_put(trainer.params, trainer.first_device), ())
    bound = Inspected(trainer.model, {"params": params})
    return InspectedPasses(bound, lambda rows: tuple(trainer.in_dtype({}, trainer.model_inputs(rows))[1]), inputs)


def page_of(
    passes: InspectedPasses,
    title: str,
    examples: Sequence[InspectedExample],
    compared: Sequence[InspectedExample] = (),
    more: Json | None = None,
) -> Page:
    """A page on some examples.

    Args:
        passes: of the model.
        title: of the page.
        examples: that it shows.
        compared: those among which alike ones are looked for.
        more: contents of further tabs.
    """
    blobs, contents, answers = list[str](), list[str](), list[Answer]()
    for example, near in zip(examples, neighbours(passes, examples, compared), strict=True):
        arrays = passes.of(example)
        numbers = range(len(blobs), len(blobs) + len(arrays.maps))
        blobs += map(packed_map, arrays.maps)
        contents.append(json.dumps({**content_of(passes, example, arrays, numbers, near), **(more or {})}))
        answers.append(example.answer(arrays.output))
    listed = [
        {"title": example.title or f"example {number}", "blob": len(blobs) + number}
        for number, example in enumerate(examples)
    ]
    count = sum(leaf.size for leaf in jax.tree.leaves(passes.bound.variables["params"]))
    about = f"{type(passes.bound.model).__name__} of {count:,} parameters"
    blobs += [packed(content.encode()) for content in contents]
    body = filled("page.html", title=html.escape(title), about=html.escape(about))
    return Page(view_text(title, {"view": "page", "examples": listed}, blobs, body), examples, answers)
