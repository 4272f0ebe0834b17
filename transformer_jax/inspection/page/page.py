"""A page on a trained model and some examples: one HTML file that needs no network."""

import base64
import dataclasses
import html
import json
import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import SupportsFloat

import jax
import numpy as np
from jaxtyping import Float, UInt8

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError, check_value
from transformer_jax.inspection.page.passes import (
    InspectedPasses,
    Neighbour,
    Passes,
    answer_changes,
    compared_examples,
    neighbours,
)
from transformer_jax.outside_files import Json
from transformer_jax.training.example_viewer import ExampleViewer
from transformer_jax.training.inspected_example import Answer, InspectedExample

FIRST = 4  # examples of the test set that are shown where none are given
HEIGHT = 1000  # pixels of the page in a notebook
GZIP = 31  # zlib's word for that format
STEP = 1e-4  # of the weights, as in `script.js`
MAX_WEIGHT = 6.5  # that 16 bits hold


@dataclasses.dataclass(frozen=True)
class Page:
    """A page to explore, as one string of HTML; a notebook shows it."""

    text: str  # in HTML
    examples: Sequence[InspectedExample]  # that it shows
    answers: Sequence[Answer]  # of the examples

    def save(self, path: str | Path) -> None:
        """Write the page to a file, which any browser opens.

        Raises:
            InputError: `path` is no path.
        """
        check_value("path", path, str | Path)
        Path(path).write_text(self.text, encoding="utf-8")

    def _repr_html_(self) -> str:
        """The page in a frame of its own."""
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" title="Inspection" '
            f'style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
        )


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
    if examples is None:
        examples = trainer.test_examples(range(min(FIRST, len(trainer.test_set))))
    if not examples:
        raise InputError("examples is empty; there must be at least one example")
    passes = InspectedPasses(trainer, examples[0].inputs)
    computed = [passes.of(example) for example in examples]
    near = neighbours(passes, examples, compared_examples(trainer))
    stored = [packed_map(maps) for arrays in computed for maps in arrays.maps]
    numbers = iter(range(len(stored)))
    contents = [
        _content(passes, example, arrays, [next(numbers) for _ in passes.attentions], alike)
        for example, arrays, alike in zip(examples, computed, near, strict=True)
    ]
    blobs = stored + [packed(json.dumps(shown).encode()) for shown in contents]
    listed = [
        {"title": example.title or f"example {number}", "blob": len(stored) + number}
        for number, example in enumerate(examples)
    ]
    count = sum(leaf.size for leaf in jax.tree.leaves(trainer.params))
    about = f"{type(trainer.model).__name__} of {count:,} parameters"
    answers = [example.answer(arrays.output) for example, arrays in zip(examples, computed, strict=True)]
    return Page(_page_text(title or trainer.name, about, blobs, {"examples": listed}), examples, answers)


def packed(content: bytes) -> str:
    """The bytes as text that a browser can unpack by itself."""
    packer = zlib.compressobj(wbits=GZIP)
    return base64.b64encode(packer.compress(content) + packer.flush()).decode("ascii")


def packed_map(maps: Float[np.ndarray, "H _T _S"]) -> str:
    """Weights as whole multiples of `STEP` in 16 bits: more digits would be most of a page.

    Raises:
        InputError: one is negative, or too large for 16 bits, as an attention of one's own may give them.
    """
    if maps.size and not 0 <= maps.min() <= maps.max() <= MAX_WEIGHT:
        raise InputError(f"weights are {maps.min():.4g} … {maps.max():.4g}; a page shows those of 0 … {MAX_WEIGHT}")
    return packed(np.rint(maps / STEP).astype("<u2").tobytes())


def _page_text(title: str, about: str, blobs: Sequence[str], data: Json) -> str:
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


def _content(
    passes: InspectedPasses,
    example: InspectedExample,
    arrays: Passes,
    blobs: Sequence[int],
    near: Sequence[Neighbour],
) -> Json:
    """All that the page says of an example but its maps, as JSON for its script; `blobs` are the numbers of these."""
    answer = example.answer(arrays.output)
    images, numbered = _images(example, near)
    return {
        "title": example.title,
        "expected": example.expected,
        "places": _places(answer, example.labels_of(passes.last_stack, len(answer.parts))),
        "answer": _answer(answer),
        "kinds": _kinds(passes, example, arrays, blobs),
        "lens": [
            {"name": _lens_name(name), "answer": _answer(example.answer(output))}
            for name, output in zip(passes.stream, arrays.lens, strict=True)
        ],
        "neighbours": [_neighbour(*pair) for pair in zip(near, numbered, strict=True)],
        "images": images,
    }


def _places(answer: Answer, labels: list[str]) -> list[str]:
    """Labels of the answer's positions, where the answer only numbers them."""
    places = [part.place for part in answer.parts]
    return labels if len(labels) == len(places) and places == list(map(str, range(len(places)))) else places


def _kinds(passes: InspectedPasses, example: InspectedExample, arrays: Passes, blobs: Sequence[int]) -> list[Json]:
    """Kinds of attention, in the order of the pass, each with its layers."""
    kinds: dict[str, Json] = {}
    length = len(example.answer(arrays.output).parts)
    changes = {kind: answer_changes(arrays.output, outputs, length) for kind, outputs in arrays.ablated.items()}
    num_images = 0 if example.images is None else len(example.images)
    each = zip(passes.attentions, arrays.labels, arrays.maps, blobs, strict=True)
    for attention, (queries, keys), maps, blob in each:
        has_images = num_images > 0 and len(queries) == num_images == len(keys)
        begun = {"name": attention.kind, "queries": queries, "keys": keys, "images": has_images, "layers": []}
        layers = kinds.setdefault(attention.kind, begun)["layers"]
        number = len(layers)
        heads = [_answer(example.answer(output)) for output in arrays.ablated[attention.kind][number]]
        of_map = {"blob": blob, "shape": maps.shape, "largest": float(maps.max(initial=0))}
        of_heads = changes[attention.kind][number].tolist()
        layers.append({"number": number, "map": of_map, "ablated": heads, "changes": of_heads})
    return list(kinds.values())


def _answer(answer: Answer) -> Json:
    parts = [[part.text, _number(part.probability)] for part in answer.parts]
    return {"text": answer.text, "probability": _number(answer.probability), "parts": parts}


def _number(probability: SupportsFloat | None) -> float | None:
    """As JSON takes it, which knows no NumPy."""
    return None if probability is None else float(probability)


def _lens_name(residual: str) -> str:
    """`encoder.layers.0.input` is the input, `encoder.layers.1.output` is layer 1."""
    *_, number, end = residual.split(".")
    return "input" if end == "input" else f"layer {number}"


def _neighbour(near: Neighbour, images: tuple[int, int] | None) -> Json:
    return {
        "title": near.example.title,
        "expected": near.example.expected,
        "text": near.answer.text,
        "probability": _number(near.answer.probability),
        "cosine": near.cosine,
        "images": images,
    }


def _images(example: InspectedExample, near: Sequence[Neighbour]) -> tuple[Json | None, list[tuple[int, int] | None]]:
    """Pixels of the example's images and of its neighbours'; and of each neighbour the first one and their number."""
    if example.images is None:
        return None, [None] * len(near)
    all_images, numbered = [example.images], list[tuple[int, int] | None]()
    for neighbour in near:
        images = neighbour.example.images
        is_alike = images is not None and images.shape[1:] == example.images.shape[1:]
        numbered.append((sum(map(len, all_images)), len(images)) if images is not None and is_alike else None)
        if images is not None and is_alike:
            all_images.append(images)
    return {"number": len(example.images), **_pixels(np.concatenate(all_images))}, numbered


def _pixels(images: UInt8[np.ndarray, "N height width *rgb"]) -> Json:
    _, height, width, *channels = images.shape
    pixels = base64.b64encode(np.ascontiguousarray(images).tobytes()).decode("ascii")
    return {"height": height, "width": width, "channels": channels[0] if channels else 1, "pixels": pixels}
