"""Views of single arrays: attention weights of all heads, values of tokens, tables of numbers."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import as_array, check_arguments
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.page.token_text import token_text
from transformer_jax.inspection.page.view import View, coloured, stored_map, view_text
from transformer_jax.inspection.patching.patch_grid import RESTORED, PatchGrid
from transformer_jax.outside_files import Json, as_input_error
from transformer_jax.training.inspected_example import Label

Labels: TypeAlias = Sequence[Label] | np.ndarray
Numbers: TypeAlias = ArrayLike | Sequence[object]  # an array, or nested lists


@check_arguments
def show_heads(weights: Numbers, tokens: Labels, queries: Labels | None = None) -> View:
    """Show all heads at a glance, as maps or as lines from queries to keys; the chosen head is large, with its values.

    Args:
        weights: attention weights for one input: `[H, T, S]` for one layer, `[L, H, T, S]` or a list of `[H, T, S]` for
            several, or `[L, 1, H, T, S]`, as `Activations.stack` returns for a batch of one.
        tokens: labels of the S key positions.
        queries: labels of the T query positions; None for the same labels.

    Raises:
        InputError: the weights have other shapes, are negative or above 6.5, or there are more or fewer labels.
    """
    layers = _numbers("weights", weights)
    if layers.ndim == 5 and layers.shape[1] == 1:
        layers = layers[:, 0]
    if layers.ndim == 3:
        layers = layers[None]  # [L H T S]
    key_labels = _labels("tokens", tokens)
    query_labels = key_labels if queries is None else _labels("queries", queries)
    num_queries = len(query_labels)
    num_keys = len(key_labels)
    if layers.ndim != 4 or not layers.size or layers.shape[2:] != (num_queries, num_keys):
        raise InputError(
            f"weights has a layer of shape {layers.shape[1:]}; it must be [H, {num_queries},"
            f" {num_keys}]"
        )
    blobs: list[str] = []
    data = {
        "view": "heads",
        "layers": [stored_map(blobs, layer) for layer in layers],
        "queries": query_labels,
        "keys": key_labels,
    }
    return View(view_text("Heads", data, blobs))


@check_arguments
def show_tokens(tokens: Labels, values: Numbers, names: Labels | None = None) -> View:
    """Show tokens coloured by values, such as a loss, a gradient, or how active a feature is.

    Args:
        tokens: labels of the T tokens.
        values: one value per token `[T]`, or several lines of values `[N, T]`; each sign has its colour.
        names: names of the N lines.

    Raises:
        InputError: there are no values, not one value per token, or not one name per line.
    """
    given = _numbers("values", values)
    labels = _labels("tokens", tokens)
    lines = np.atleast_2d(given)
    if lines.ndim != 2 or lines.shape[1] != len(labels) or not lines.size:
        raise InputError(
            f"values has shape {given.shape}; it must be [{len(labels)}], one for each token, or"
            " lines"
        )
    named = [""] * len(lines) if names is None else _labels("names", names)
    if len(named) != len(lines):
        raise InputError(f"names has {len(named)} names; there are {len(lines)} lines of values")
    data = {"view": "tokens", "tokens": labels, "names": named, **coloured(lines)}
    return View(view_text("Tokens", data))


@check_arguments
def show_grid(grid: PatchGrid | Numbers, tokens: Labels | None = None) -> View:
    """Show a table of numbers in colours, readable with mouse or keys; `PatchGrid.plot` draws a figure of it.

    Args:
        grid: as `patch_grid` returns it, or an array `[rows, columns]`.
        tokens: labels of the positions, or of an array's columns; None numbers them.

    Raises:
        InputError: the grid's metric was not a number, the array has other axes, or there are more or fewer tokens.
    """
    if isinstance(grid, PatchGrid):
        frames, column = grid.frames()
        row = "layer"
        least = RESTORED
    else:
        frames = _numbers("grid", grid)[None]
        column = "column"
        row = "row"
        least = 0.0
    if frames.ndim != 3 or not frames.size:
        raise InputError(
            f"grid has shape {frames.shape[1:]}; it must be a PatchGrid or [rows, columns]"
        )
    tables = []
    for number, values in enumerate(frames):
        title = f"head {number}" if len(frames) > 1 else ""
        tables.append(grid_frame(title, values, row, tokens, least))
    return View(view_text("Grid", {"view": "grid", "frames": tables, "what": column}))


def grid_frame(
    title: str,
    values: Float[np.ndarray, "rows columns"],
    row: str,
    labels: Labels | None,
    least: float,
) -> Json:
    """One table of a grid, as JSON for the script, with the colour scale of `full_colour`.

    Raises:
        InputError: there is not one label for each column.
    """
    num_rows, num_columns = values.shape
    columns = _labels("tokens", range(num_columns) if labels is None else labels)
    if len(columns) != num_columns:
        raise InputError(f"tokens has {len(columns)} labels; the grid has {num_columns} columns")
    return {
        "title": title,
        "rows": [f"{row} {number}" for number in range(num_rows)],
        "columns": columns,
        **coloured(values, least),
    }


def _numbers(name: str, given: object) -> Float[np.ndarray, "..."]:
    """Return numbers in float64; an `InputError` if they are anything but an array of real numbers."""
    with as_input_error(
        f"{name} is {shortened(given)}; it must be an array of real numbers", TypeError
    ):
        return np.asarray(as_array(name, given)).astype(np.float64, casting="same_kind", copy=False)


def _labels(name: str, labels: Labels) -> list[str]:
    """Return labels as texts, with spaces and line breaks as `token_text` shows them."""
    if isinstance(labels, str) or np.ndim(labels) != 1:
        raise InputError(f"{name} is {shortened(labels)}; it must be a list of labels")
    return [token_text(str(label)) for label in labels]
