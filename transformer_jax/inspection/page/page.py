"""A page on a trained model and some examples: one HTML file that needs no network."""

import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

import jax

from transformer_jax.errors import InputError, check_path
from transformer_jax.inspection.page.contents import Json, content, shown_maps
from transformer_jax.inspection.page.passes import InspectedPasses, compared_examples, neighbours
from transformer_jax.inspection.page.stored_maps import packed, stored_maps
from transformer_jax.training.evaluator import Evaluator
from transformer_jax.training.inspected_example import Answer, InspectedExample

FIRST = 4  # examples of the test set that are shown where none are given
HEIGHT = 1000  # pixels of the page in a notebook


class Page:
    """A page to explore, as one string of HTML; a notebook shows it.

    Args:
        text: of the page, in HTML.
        examples: that it shows.
        answers: of the examples.
    """

    def __init__(self, text: str, examples: Sequence[InspectedExample], answers: Sequence[Answer]) -> None:
        self.text = text
        self.examples = list(examples)
        self.answers = list(answers)

    def save(self, path: str | Path) -> None:
        """Write the page to a file, which any browser opens.

        Raises:
            InputError: `path` is no path.
        """
        check_path("path", path)
        Path(path).write_text(self.text, encoding="utf-8")

    def _repr_html_(self) -> str:
        """The page in a frame of its own."""
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" title="Inspection" '
            f'style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
        )


def inspection_page(
    trainer: Evaluator, examples: Sequence[InspectedExample] | None = None, title: str | None = None
) -> Page:
    """Make a page that shows what a trainer's model does with some examples.

    Args:
        trainer: with parameters.
        examples: as `trainer.examples(inputs)` gives them; None for the first ones of its test set.
        title: of the page; the task's name if None.

    Raises:
        InputError: there are no examples or no parameters, or the model has no attention to show.
    """
    count = sum(leaf.size for leaf in jax.tree.leaves(trainer.params))
    if examples is None:
        examples = trainer.test_examples(range(min(FIRST, len(trainer.test_set))))
    if not examples:
        raise InputError("examples is empty; there must be at least one example")
    passes = InspectedPasses(trainer, examples[0].inputs)
    computed = [passes.of(example) for example in examples]
    near = neighbours(passes, examples, compared_examples(trainer))
    maps = [shown_maps(passes, *pair) for pair in zip(examples, computed, strict=True)]
    stored = stored_maps([of_layer for of_example in maps for of_layer in of_example])
    numbered = iter(enumerate(stored))
    contents = [
        content(passes, example, arrays, [next(numbered) for _ in passes.attentions], alike)
        for example, arrays, alike in zip(examples, computed, near, strict=True)
    ]
    blobs = [maps.text for maps in stored] + [packed(json.dumps(shown).encode()) for shown in contents]
    listed = [
        {"title": example.title or f"example {number}", "blob": len(stored) + number}
        for number, example in enumerate(examples)
    ]
    about = f"{type(trainer.model).__name__} of {count:,} parameters"
    answers = [example.answer(arrays.output) for example, arrays in zip(examples, computed, strict=True)]
    return Page(page_text(title or trainer.name, about, blobs, {"examples": listed}), examples, answers)


def page_text(title: str, about: str, blobs: Sequence[str], data: Json) -> str:
    """The file: template, style, script and data in one.

    Args:
        title: of the page.
        about: a line below it.
        blobs: texts that the script unpacks when they are needed.
        data: what it reads first.
    """
    files = resources.files("transformer_jax.inspection.page")
    template, style, script = (
        files.joinpath(name).read_text(encoding="utf-8") for name in ("template.html", "style.css", "script.js")
    )
    return Template(template).substitute(
        title=html.escape(title),
        about=html.escape(about),
        style=style,
        script=script,
        blobs="\n".join(
            f'<script type="text/plain" id="blob-{number}">{blob}</script>' for number, blob in enumerate(blobs)
        ),
        data=json.dumps(data).replace("<", "\\u003c"),  # no end of the script, whatever a text holds
    )
