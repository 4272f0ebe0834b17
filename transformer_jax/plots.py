"""Plots of NumPy arrays. Each function returns a figure without a window; save it with `savefig`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Num, Shaped

from transformer_jax.argument_checks import check_offset
from transformer_jax.config import percent
from transformer_jax.errors import InputError, check_sizes, check_value, shortened
from transformer_jax.nn.positions import sinusoidal_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

MAX_WIDTH = 16.0  # maximum width of heads side by side, in inches
MAX_CELL = 0.18  # maximum side of the square of a weight, in inches
LETTERS = 7  # font size of tick labels in points
LETTER, LINE = 0.075, 0.13  # width of a letter and height of a line at this size, in inches
MAX_LABEL = 16  # maximum letters of a tick label
MIN_MAP = 0.7, 0.4  # minimum width and height of a map, in inches
MARGIN = 0.3, 0.5  # width and height around a map and its labels, in inches
BAR, TITLE, AXIS_LABEL = 0.9, 0.3, 0.4  # room for these, in inches
# for texts of users, in which $ does not begin a formula
PLAIN: dict[str, Any] = {"parse_math": False}


def _figure(width: float, height: float) -> "Figure":
    """Create an empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plot_attention_maps(
    input_data: Shaped[ArrayLike, "B S"] | Sequence[Sequence[str]] | None,
    attention_maps: Sequence[Float[ArrayLike, "B H T S"]] | Float[ArrayLike, "B H T S"],
    idx: int = 0,
    query_data: Shaped[ArrayLike, "B T"] | Sequence[Sequence[str]] | None = None,
    first_layer: int = 0,
) -> "Figure":
    """Plot the attention weights of one batch element: layer by layer, with heads side by side in one or more rows.

    All heads of a layer share a colour scale, with a colour bar beside them. Layers and heads are numbered from 0, as
    in the names of activations.

    Args:
        input_data: tick labels of the keys, `[B, S]`; None numbers the positions.
        attention_maps: one array `[B, H, T, S]` per layer, as returned by `get_attention_maps`, or that of one layer.
        idx: index of the batch element.
        query_data: tick labels of the queries, `[B, T]`, for cross-attention; None for the labels of the keys.
        first_layer: number of the first layer.

    Raises:
        InputError: `attention_maps` is empty or has other shapes, `idx` is outside the batch, or the numbers of labels
            and positions differ.
    """
    if not isinstance(attention_maps, Sequence):
        attention_maps = [attention_maps]
    layers = _layers(attention_maps, "B H T S")
    num_rows, _, num_queries, num_keys = layers[0].shape
    check_offset("idx", idx, 0, num_rows - 1)
    check_sizes(0, first_layer=first_layer)
    keys = _labels("input_data", input_data, idx, num_keys)
    if query_data is None:
        queries = _labels("input_data", input_data, idx, num_queries)
    else:
        queries = _labels("query_data", query_data, idx, num_queries)
    return plot_maps_of_inputs([([layer[idx] for layer in layers], keys, queries)], first_layer)


def plot_maps_of_inputs(
    inputs: Sequence[tuple[Sequence[Float[np.ndarray, "H _T _S"]], Sequence[str], Sequence[str]]],
    first_layer: int,
) -> "Figure":
    """Plot the attention weights of several inputs below one another.

    Args:
        inputs: of each input, the maps `[H, T, S]` of the layers and the tick labels of keys and queries.
        first_layer: number of the first layer.
    """
    if not inputs:
        raise InputError("inputs is empty; there must be at least one input")
    panels = [_Panels(*drawn) for drawn in inputs]
    heights = [panel.height for panel in panels]
    figure = _figure(max(panel.width for panel in panels), sum(heights))
    if len(panels) == 1:
        panels[0].draw(figure, first_layer)
        return figure
    parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, panel in zip(parts, panels, strict=True):
        panel.draw(part, first_layer)
    return figure


class _Panels:
    """The attention maps of one input, with square cells, which are smaller if there are many cells, heads or layers.

    Args:
        maps: of each layer.
        keys: labels of the keys.
        queries: labels of the queries.
    """

    def __init__(
        self,
        maps: Sequence[Float[np.ndarray, "H T S"]],
        keys: Sequence[str],
        queries: Sequence[str],
    ) -> None:
        self.maps = maps
        num_heads = len(maps[0])
        longest_side = max(2.0, 6.0 / (len(maps) * num_heads) ** 0.25)
        cell = min(MAX_CELL, longest_side / max(len(keys), len(queries)))
        self.step = max(1, round(LINE / cell))  # one label in this many has room
        self.keys = [label[:MAX_LABEL] for label in keys]
        self.queries = [label[:MAX_LABEL] for label in queries]
        self.longest_key = max(map(len, self.keys[:: self.step]))
        longest_query = max(map(len, self.queries[:: self.step]))
        # of one head's map with its labels, in inches
        width = max(cell * len(keys), MIN_MAP[0]) + MARGIN[0] + LETTER * longest_query
        height = max(cell * len(queries), MIN_MAP[1]) + MARGIN[1] + LETTER * self.longest_key
        # as few rows of heads as the page is wide enough for, of nearly equal length
        max_columns = max(1, int(MAX_WIDTH / width))
        self.rows = math.ceil(num_heads / max_columns)
        self.columns = math.ceil(num_heads / self.rows)
        self.width = self.columns * width + BAR + AXIS_LABEL  # in inches
        self.height = len(maps) * (self.rows * height + TITLE) + AXIS_LABEL

    def draw(self, figure: "FigureBase", first_layer: int = 0) -> None:
        """Draw all layers below one another; the first one has this number."""
        hidden = later_keys(self.maps)
        note = ", later ones are hidden" if hidden.any() else ""
        figure.supxlabel(f"Key{self._skipped(self.keys)}{note}", fontsize="medium")
        figure.supylabel(f"Query{self._skipped(self.queries)}", fontsize="medium")
        parts = figure.subfigures(len(self.maps), 1, squeeze=False)[:, 0]
        for layer, (part, heads) in enumerate(zip(parts, self.maps, strict=True), first_layer):
            part.suptitle(f"Layer {layer}", fontsize="medium")
            axes = []
            for head, weights in enumerate(heads):
                ax = part.add_subplot(self.rows, self.columns, 1 + head)
                axes.append(ax)
                seen = np.where(hidden, np.nan, weights)  # no colour
                image = ax.imshow(
                    seen, vmin=0, vmax=heads.max(), cmap="viridis", interpolation="nearest"
                )
                ax.set_title(f"Head {head}", fontsize="small")
                self._label(ax)
            bar = part.colorbar(image, ax=axes, fraction=0.05, shrink=0.9, aspect=12)
            bar.ax.tick_params(labelsize=LETTERS)

    def _label(self, ax: "Axes") -> None:
        """Label the keys and queries of a map, as many as have room."""
        rotation = "vertical" if self.longest_key > 2 else "horizontal"
        every = slice(None, None, self.step)
        keys = range(len(self.keys))
        queries = range(len(self.queries))
        ax.tick_params(labelsize=LETTERS, length=2)
        ax.set_xticks(keys[every], self.keys[every], rotation=rotation, **PLAIN)
        ax.set_yticks(queries[every], self.queries[every], **PLAIN)
        ax.label_outer()

    def _skipped(self, labels: Sequence[str]) -> str:
        """Note that labels are left out, for the name of an axis."""
        return f" (one label in {self.step})" if len(labels) > self.step > 1 else ""


def later_keys(maps: Sequence[Float[np.ndarray, "H T S"]]) -> Bool[np.ndarray, "T S"]:
    """Which keys come after their query, if a causal mask hides them: all their weights are 0. Else none."""
    num_queries, num_keys = maps[0].shape[-2:]
    later = ~np.tri(num_queries, num_keys, dtype=bool)
    is_causal = num_queries == num_keys and not any(each[:, later].any() for each in maps)
    return later & is_causal


def _layers(maps: Sequence[ArrayLike], shape: str) -> list[np.ndarray]:
    """Return the maps of all layers, which must have one shape, given in letters."""
    layers = [np.asarray(layer) for layer in maps] if isinstance(maps, Iterable) else []
    shapes = [layer.shape for layer in layers]
    if len(set(shapes)) != 1 or len(shapes[0]) != len(shape.split()) or 0 in shapes[0]:
        raise InputError(
            f"attention_maps has arrays of shapes {shapes}; it must have one [{shape}] per layer"
        )
    return layers


def _labels(
    name: str,
    data: Shaped[ArrayLike, "B N"] | Sequence[Sequence[str]] | None,
    idx: int,
    number: int,
) -> list[str]:
    """Return the tick labels of row `idx` of the data, one for each position; their numbers if there is no data."""
    if data is None:
        return [str(place) for place in range(number)]
    rows = data if isinstance(data, list | tuple) else np.asarray(data)
    if len(np.shape(rows)) != 2 or len(rows) <= idx:
        raise InputError(
            f"{name} is {shortened(data)}; it must be [B, positions], with B above idx, which is"
            f" {idx}"
        )
    row = rows[idx]
    if len(row) != number:
        raise InputError(
            f"{name} has {len(row)} labels for {number} positions; the numbers must be equal"
        )
    return [str(token) for token in row]


def plot_positional_encoding(d_model: int, length: int) -> "Figure":
    """Plot the sinusoidal positional encoding as an image: positions to the right, hidden dimensions upward.

    Raises:
        InputError: `d_model` or `length` is below 1.
    """
    figure = _figure(8.0, 4.0)
    ax = figure.subplots()
    table = sinusoidal_table(length, d_model)
    image = ax.imshow(
        table.T,
        cmap="RdBu",
        vmin=-1,
        vmax=1,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    figure.colorbar(image, ax=ax)
    ax.set(
        xlabel="Position in the sequence",
        ylabel="Hidden dimension",
        title="Sinusoidal positional encoding",
    )
    return figure


def plot_curves(
    curves: Mapping[str, Num[ArrayLike, "N 2"]],
    x_label: str = "Step",
    y_label: str = "",
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> "Figure":
    """Plot curves in one frame, with a legend beside it.

    Args:
        curves: points (x, y) of each curve, `[N, 2]`, by its name.
        x_label: label of the x-axis.
        y_label: label of the y-axis.
        log_x: use a logarithmic x-axis.
        log_y: use a logarithmic y-axis.

    Raises:
        InputError: there are no curves, or a curve has another shape or no points.
    """
    check_value("curves", curves, Mapping)
    shapes = {name: np.shape(points) for name, points in curves.items()}
    if not shapes or any(shape[1:] != (2,) or shape[0] == 0 for shape in shapes.values()):
        raise InputError(
            f"curves has the shapes {shapes}; it must have at least one curve, each [N, 2]"
        )
    figure = _figure(7.0, 3.5)
    ax = figure.subplots()
    for name, points in curves.items():
        ax.plot(*np.asarray(points).T, label=name)
    ax.set_xlabel(x_label, **PLAIN)
    ax.set_ylabel(y_label, **PLAIN)
    if log_x:
        ax.set_xscale("log")
    if log_y:
        ax.set_yscale("log")
    for text in figure.legend(loc="outside right upper").get_texts():
        text.set(**PLAIN)
    return figure


def plot_image_sets(images: Num[ArrayLike, "N S ..."], anomalies: Int[ArrayLike, " N"]) -> "Figure":
    """Plot sets of images, one per row, with a frame around the anomaly of each set.

    Args:
        images: `[N, S, height, width]` in grey or `[N, S, height, width, 3]` in colour.
        anomalies: `[N]`, position of the anomaly in each set.

    Raises:
        InputError: the images have another shape, or `anomalies` is not one position per set.
    """
    num_sets, set_size = _check_images(images, "[N, S, height, width]")
    _check_positions("anomalies", anomalies, (num_sets,), set_size)
    figure = _figure(float(set_size), 1.15 * num_sets)
    rows = figure.subplots(num_sets, set_size, squeeze=False)
    for axes, image_set, anomaly in zip(
        rows, np.asarray(images), np.asarray(anomalies), strict=True
    ):
        _draw_set(axes, image_set, {int(anomaly): "tab:red"})
    return figure


def plot_set_prediction(
    images: Num[ArrayLike, "S ..."],
    probabilities: Float[ArrayLike, " S"],
    anomaly: int,
    attention_maps: Sequence[Float[ArrayLike, "H S N"]],
) -> "Figure":
    """Plot a set, the probability of each image being the odd one out, and the attention maps of all layers and heads.

    The images are numbered. The anomaly has a green frame; if the model chose another image, that has a red frame.

    Args:
        images: `[S, height, width]` in grey or `[S, height, width, 3]` in colour.
        probabilities: `[S]`.
        anomaly: position of the anomaly.
        attention_maps: one `[H, S, N]` per layer, with N keys: the images, or the inducing points of an `ISAB`.

    Raises:
        InputError: an argument has another shape, or `anomaly` is not a position of the set.
    """
    (set_size,) = _check_images(images, "[S, height, width]")
    maps = _layers(attention_maps, "H S N")  # L times [H S N]
    _check_positions("anomaly", anomaly, (), set_size)
    if np.shape(probabilities) != (set_size,):
        raise InputError(
            f"probabilities has shape {np.shape(probabilities)}; it must be ({set_size},)"
        )
    chosen = int(np.argmax(probabilities))
    numbers = list(map(str, range(set_size)))
    panels = _Panels(maps, numbers, numbers)
    heights = 1.8, panels.height
    figure = _figure(max(float(set_size), panels.width), sum(heights))
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=heights)[:, 0]
    title = f"Odd one out: {anomaly} (green frame). Chosen: {chosen}"
    top.suptitle(title if chosen == anomaly else f"{title} (red frame)")
    row = top.subplots(1, set_size, squeeze=False)[0]
    _draw_set(row, images, {chosen: "tab:red", anomaly: "tab:green"})
    for number, (ax, probability) in enumerate(zip(row, np.asarray(probabilities), strict=True)):
        ax.set_title(f"{number}: {percent(probability, 1)}", fontsize="small")
    panels.draw(bottom)
    return figure


def _check_positions(
    name: str, positions: Int[ArrayLike, "..."], shape: tuple[int, ...], set_size: int
) -> None:
    """Raise an `InputError` unless positions have this shape and are those of a set of this size."""
    if np.shape(positions) != shape or not np.isin(positions, np.arange(set_size)).all():
        raise InputError(
            f"{name} is {shortened(positions)}; it must have the shape {shape}, of positions"
            f" 0 … {set_size - 1}"
        )


def _check_images(images: ArrayLike, grey: str) -> tuple[int, ...]:
    """Return the sizes of the axes before height and width; `grey` is the expected shape of grey images."""
    shape = np.shape(images)
    num_axes = grey.count(",") + 1  # of grey images
    if 0 in shape or len(shape) < num_axes or shape[num_axes:] not in ((), (3,), (4,)):
        raise InputError(
            f"images has shape {shape}; it must be {grey}, or with a last axis of 3 colours"
        )
    return shape[: num_axes - 2]


def _draw_set(
    axes: Iterable["Axes"], images: Num[ArrayLike, "S ..."], frames: Mapping[int, str]
) -> None:
    """Draw the images, some with a frame, whose colours are given by position."""
    for position, (ax, image) in enumerate(zip(axes, np.asarray(images), strict=True)):
        ax.imshow(image, cmap="gray")
        ax.set(xticks=(), yticks=())
        ax.spines[:].set(visible=position in frames, color=frames.get(position), linewidth=3)
