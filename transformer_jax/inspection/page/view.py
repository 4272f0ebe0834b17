"""A view: one HTML file that needs no network, and that notebooks display."""

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

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.colour_scale import full_colour
from transformer_jax.outside_files import Json, as_input_error, write_whole

BEGINNING = (
    '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-'
)
SCRIPTS = "elements.js", "value_map.js", "views.js", "graph.js", "page.js", "start.js"
HEIGHT = 700  # pixels; height of a view in a notebook, until its script adjusts it
STEP = 1e-4  # resolution of the weights, as in `elements.js`
MAX_WEIGHT = 6.5  # 16 bits hold slightly more


@dataclasses.dataclass(frozen=True)
class View:
    """A view as one string of HTML, which a notebook displays."""

    text: str  # in HTML

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.text)} characters of HTML; save(path) writes them)"

    @check_arguments
    def save(self, path: str | Path) -> None:
        """Write the view atomically to a file, which any browser can open.

        Raises:
            InputError: `path` is not a path, or cannot be written.
        """
        with as_input_error(
            f"path is {path}; it must be a file that can be written", OSError, ValueError
        ):
            write_whole(Path(path).resolve(), self.text.encode(errors="backslashreplace"))

    def _repr_html_(self) -> str:
        """The view in an iframe."""
        return (
            f'<iframe srcdoc="{html.escape(self.text)}" title="Inspection" '
            f'style="width:100%;height:{HEIGHT}px;border:0"></iframe>'
        )


def packed(content: bytes) -> str:
    """Compress bytes to text that a browser can unpack by itself."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")


def stored_map(blobs: list[str], maps: Float[np.ndarray, "H _T _S"]) -> Json:
    """Append the weights of a layer's heads to the blobs, and return how the script finds them.

    They are integer multiples of `STEP` in 16 bits, because more digits would be most of the page's size.

    Raises:
        InputError: a weight is negative or too large for 16 bits, as may happen in a user's own attention.
    """
    least = maps.min(initial=0)
    largest = maps.max(initial=0)
    if not 0 <= least <= largest <= MAX_WEIGHT:
        raise InputError(
            f"weights are {maps.min():.4g} … {maps.max():.4g}; a page shows those of 0 …"
            f" {MAX_WEIGHT}"
        )
    blobs.append(packed(np.rint(maps / STEP).astype("<u2").tobytes()))
    return {"blob": len(blobs) - 1, "shape": maps.shape, "largest": float(largest)}


def rounded(values: ArrayLike) -> list[object]:
    """Round numbers to four digits, as nested lists; non-finite numbers, which JSON lacks, become None."""
    array = np.asarray(values, np.float64)
    numbers = [float(f"{value:.4g}") if np.isfinite(value) else None for value in array.flat]
    return list(np.array(numbers, object).reshape(array.shape).tolist())


def coloured(values: ArrayLike, least: float = 0.0) -> Json:
    """Numbers from `rounded`, and the value of the full colour from `full_colour`."""
    numbers = rounded(values)
    # None becomes NaN
    return {"values": numbers, "full": full_colour(np.array(numbers, np.float64), least)}


def view_text(title: str, data: Json, blobs: Sequence[str] = (), body: str = "") -> str:
    """Return the HTML file, with template, style, scripts and data.

    Args:
        title: title of the document.
        data: data that the script reads first; `view` is the kind of view.
        blobs: texts that the script unpacks when they are needed.
        body: elements that the script fills, in HTML.
    """
    scripts = [
        f'<script type="text/plain" id="blob-{number}">{blob}</script>'
        for number, blob in enumerate(blobs)
    ]
    return filled(
        "template.html",
        title=html.escape(title),
        style=_file("style.css"),
        script="\n".join(map(_file, SCRIPTS)),
        body=body,
        blobs="\n".join(scripts),
        data=json.dumps(data).replace("<", "\\u003c"),  # a text must not end the script
    )


def filled(template: str, **parts: str) -> str:
    """Fill a template of this folder with parts, in HTML."""
    return Template(_file(template)).substitute(parts)


def _file(name: str) -> str:
    folder = resources.files("transformer_jax.inspection.page")
    return folder.joinpath(name).read_text(encoding="utf-8")
