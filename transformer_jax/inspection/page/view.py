"""A view: one HTML file that needs no network, which a notebook shows in the cell."""

import base64
import dataclasses
import gzip
import html
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.errors import InputError, check_value
from transformer_jax.inspection.colour_scale import full_colour
from transformer_jax.outside_files import Json
from transformer_jax.runs.own_files import write_whole

BEGINNING = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-'
SCRIPTS = "elements.js", "value_map.js", "views.js", "page.js", "start.js"
HEIGHT = 700  # pixels of a view in a notebook, until its script knows better
STEP = 1e-4  # of the weights, as in `elements.js`
MAX_WEIGHT = 6.5  # that 16 bits hold


@dataclasses.dataclass(frozen=True)
class View:
    """Something to look at, as one string of HTML; a notebook shows it."""

    text: str  # in HTML

    def save(self, path: str | Path) -> None:
        """Write the view to a file, whole or not at all, which any browser opens.

        Raises:
            InputError: `path` is no path.
        """
        check_value("path", path, str | Path)
        write_whole(Path(path).resolve(), self.text.encode(errors="backslashreplace"))

    def _repr_html_(self) -> str:
        """The view in a frame of its own."""
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" title="Inspection" '
            f'style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
        )


def packed(content: bytes) -> str:
    """The bytes as text that a browser can unpack by itself."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")


def stored_map(blobs: list[str], maps: Float[np.ndarray, "H _T _S"]) -> Json:
    """Store the weights of a layer's heads among the blobs, and say how the script finds them.

    They are whole multiples of `STEP` in 16 bits: more digits would be most of a page.

    Raises:
        InputError: one is negative, or too large for 16 bits, as an attention of one's own may give them.
    """
    if maps.size and not 0 <= maps.min() <= maps.max() <= MAX_WEIGHT:
        raise InputError(f"weights are {maps.min():.4g} … {maps.max():.4g}; a page shows those of 0 … {MAX_WEIGHT}")
    blobs.append(packed(np.rint(maps / STEP).astype("<u2").tobytes()))
    return {"blob": len(blobs) - 1, "shape": maps.shape, "largest": float(maps.max(initial=0))}


def rounded(values: ArrayLike) -> list[object]:
    """Numbers to four digits, as nested lists; None for those that are not finite, which JSON lacks."""
    array = np.asarray(values, np.float64)
    flat = [float(f"{value:.4g}") if np.isfinite(value) else None for value in array.ravel().tolist()]
    return list(np.array(flat, object).reshape(array.shape).tolist())


def coloured(values: ArrayLike, least: float = 0.0) -> Json:
    """Numbers as `rounded` gives them, and the one that has the full colour, as in `full_colour`."""
    numbers = rounded(values)
    return {"values": numbers, "full": full_colour(np.array(numbers, np.float64), least)}  # of None NaN is made


def view_text(title: str, data: Json, blobs: Sequence[str] = (), body: str = "") -> str:
    """The file: template, style, scripts and data in one.

    Args:
        title: of the document.
        data: what the script reads first; `view` says which one it is.
        blobs: texts that the script unpacks when they are needed.
        body: elements that the script fills, in HTML.
    """
    return filled(
        "template.html",
        title=html.escape(title),
        style=_file("style.css"),
        script="\n".join(map(_file, SCRIPTS)),
        body=body,
        blobs="\n".join(
            f'<script type="text/plain" id="blob-{number}">{blob}</script>' for number, blob in enumerate(blobs)
        ),
        data=json.dumps(data).replace("<", "\\u003c"),  # no end of the script, whatever a text holds
    )


def filled(template: str, **parts: str) -> str:
    """A template of this folder with its parts, in HTML."""
    return Template(_file(template)).substitute(parts)


def _file(name: str) -> str:
    return resources.files("transformer_jax.inspection.page").joinpath(name).read_text(encoding="utf-8")
