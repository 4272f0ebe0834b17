"""An example in words and numbers, as the page's script reads it."""

import base64
import re
from collections.abc import Sequence
from typing import SupportsFloat

import numpy as np
from jaxtyping import UInt8

from transformer_jax.inspection.inspected_call import OUTPUTS
from transformer_jax.inspection.page.passes import InspectedPasses, Neighbour, Passes
from transformer_jax.inspection.page.view import rounded, stored_map
from transformer_jax.outside_files import Json
from transformer_jax.training.inspected_example import Answer, InspectedExample


def content_of(
    passes: InspectedPasses,
    example: InspectedExample,
    arrays: Passes,
    blobs: Sequence[int],
    near: Sequence[Neighbour] = (),
) -> Json:
    """All that the page says of an example but its maps, as JSON for its script.

    Args:
        passes: of the model.
        example: to be shown.
        arrays: of the example.
        blobs: numbers of its maps.
        near: examples that are alike.
    """
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
        "attribution": _attribution(arrays.attribution, len(answer.parts)),
        "patching": None,
        "features": [],
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
    num_images = 0 if example.images is None else len(example.images)
    each = zip(passes.attentions, arrays.labels, arrays.maps, arrays.zeroed, blobs, strict=True)
    for attention, (queries, keys), maps, zeroed, blob in each:
        has_images = num_images > 0 and len(queries) == num_images == len(keys)
        begun = {"name": attention.kind, "queries": queries, "keys": keys, "images": has_images, "layers": []}
        layers = kinds.setdefault(attention.kind, begun)["layers"]
        layers.append(
            {
                "number": len(layers),
                "map": stored_map(blob, maps),
                "ablated": [_answer(head.answer) for head in zeroed],
                "changes": [head.change for head in zeroed],
            }
        )
    return list(kinds.values())


def _attribution(parts: dict[str, np.ndarray], length: int) -> Json | None:
    """Components by positions, those of an attention's heads summed up, and these heads; None where there are none."""
    if not parts:
        return None
    parts = {name: part[..., :length] for name, part in parts.items()}
    heads = {name: part for name, part in parts.items() if name.endswith(OUTPUTS)}
    return {
        "rows": [_component(name) for name in parts],
        "values": rounded(np.stack([part.sum(0) if name in heads else part for name, part in parts.items()])),
        "heads": {"rows": [_component(name) for name in heads], "values": [rounded(part) for part in heads.values()]},
    }


def _component(name: str) -> str:
    """`decoder.layers.0.cross_attention.head_outputs` is `0 cross-attention`, the first block's input `embeddings`."""
    if name.endswith("layers.0.input"):
        return "embeddings"
    return re.sub(r"^.*layers\.(\d+)\.|\.[a-z_]*$", r"\1 ", name).strip().replace("_", "-")


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
