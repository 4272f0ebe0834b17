"""What the page says of one example, as JSON for its script."""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8

from transformer_jax.inspection.page.passes import InspectedPasses, Neighbour, Passes
from transformer_jax.inspection.page.stored_maps import StoredMap
from transformer_jax.training.inspected_example import Answer, InspectedExample

DIGITS = 7  # significant ones of a probability
Json = dict[str, Any]  # Any: JSON


def shown_maps(passes: InspectedPasses, example: InspectedExample, arrays: Passes) -> list[np.ndarray]:
    """The maps [H T S] of each attention, without the padding."""
    labels = _labels(passes, example, arrays)
    return [maps[:, : len(queries), : len(keys)] for maps, (queries, keys) in zip(arrays.maps, labels, strict=True)]


def content(
    passes: InspectedPasses,
    example: InspectedExample,
    arrays: Passes,
    stored: Sequence[tuple[int, StoredMap]],
    near: Sequence[Neighbour],
) -> Json:
    """All of an example but its maps.

    Args:
        passes: that were made.
        example: the example.
        arrays: what the passes gave for it.
        stored: the maps of each attention, and their places in the page.
        near: the examples that are alike.
    """
    answer = example.answer(arrays.output)
    images, numbered = _images(example, near)
    return {
        "title": example.title,
        "expected": example.expected,
        "places": [part.place for part in answer.parts],
        "answer": _answer(answer),
        "kinds": _kinds(passes, example, arrays, stored),
        "lens": [
            {"name": _lens_name(name), "answer": _answer(example.answer(output))}
            for name, output in zip(passes.stream, arrays.lens, strict=True)
        ],
        "neighbours": [_neighbour(*pair) for pair in zip(near, numbered, strict=True)],
        "images": images,
    }


def _labels(passes: InspectedPasses, example: InspectedExample, arrays: Passes) -> list[tuple[list[str], list[str]]]:
    """The labels of queries and keys of each attention."""
    return [
        (
            example.labels_of(attention.stack, maps.shape[1]),
            example.labels_of("encoder" if attention.kind == "cross" else attention.stack, maps.shape[2]),
        )
        for attention, maps in zip(passes.attentions, arrays.maps, strict=True)
    ]


def _kinds(
    passes: InspectedPasses, example: InspectedExample, arrays: Passes, stored: Sequence[tuple[int, StoredMap]]
) -> list[Json]:
    """Kinds of attention, in the order of the pass, each with its layers."""
    kinds: dict[str, Json] = {}
    num_images = 0 if example.images is None else len(example.images)
    labels = _labels(passes, example, arrays)
    for attention, (queries, keys), (blob, maps) in zip(passes.attentions, labels, stored, strict=True):
        has_images = num_images > 0 and len(queries) == num_images == len(keys)
        begun = {"name": attention.kind, "queries": queries, "keys": keys, "images": has_images, "layers": []}
        layers = kinds.setdefault(attention.kind, begun)["layers"]
        number = len(layers)
        heads = [_answer(example.answer(output)) for output in arrays.ablated[attention.kind][number]]
        of_map = {"blob": blob, "shape": maps.shape, "step": maps.step, "largest": maps.largest}
        layers.append({"number": number, "map": of_map, "ablated": heads})
    return list(kinds.values())


def _answer(answer: Answer) -> Json:
    parts = [[part.text, _rounded(part.probability)] for part in answer.parts]
    return {"text": answer.text, "probability": _rounded(answer.probability), "parts": parts}


def _lens_name(residual: str) -> str:
    """`encoder.layers.0.input` is the input, `encoder.layers.1.output` is layer 1."""
    *_, number, end = residual.split(".")
    return "input" if end == "input" else f"layer {number}"


def _neighbour(near: Neighbour, images: tuple[int, int] | None) -> Json:
    return {
        "title": near.example.title,
        "expected": near.example.expected,
        "text": near.answer.text,
        "probability": _rounded(near.answer.probability),
        "cosine": _rounded(near.cosine),
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


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")
