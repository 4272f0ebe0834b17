"""Figures from NumPy arrays. Each function returns a figure that belongs to no window; `savefig` writes it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Num, Shaped

from transformer_jax.errors import InputError, check_sizes, shortened
from transformer_jax.nn.positions import sinusoidal_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

MAX_WIDTH = 16.0  # inches of the heads side by side
MAX_CELL = 0.18  # inches of a weight's square
LETTERS = 7  # size of the tick labels in points
LETTER, LINE = 0.075, 0.13  # inches that a letter of this size is wide, and a line is high
MAX_LABEL = 16  # letters of a tick label
PLAIN: dict[str, Any] = {"parse_math": False}  # for a text that comes from outside, in which $ begins no formula


def _figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plot_attention_maps(
    input_data: Shaped[ArrayLike, "B S"] | Sequence[Sequence[str]] | None,
    attention_maps: Sequence[Float[ArrayLike, "B H T S"]] | Float[ArrayLike, "B H T S"],
    idx: int = 0,
    query_data: Shaped[ArrayLike, "B T"] | Sequence[Sequence[str]] | None = None,
    first_layer: int = 0,
) -> "Figure":
    """Draw the attention weights of one batch element: layer by layer, the heads side by side in one or more rows.

    All heads of a layer have one colour scale, which a bar beside them shows. Layers and heads count from 0, as in the
    names of activations.

    Args:
        input_data: `[B, S]`, what stands at each key's position, for the tick labels; None numbers the positions.
        attention_maps: one `[B, H, T, S]` for each layer, as `get_attention_maps` gives them, or that of one layer.
        idx: which element of the batch.
        query_data: `[B, T]`, what stands at each query's position, in cross-attention; None for the same as the keys.
        first_layer: number of the first of these layers.

    Raises:
        InputError: `attention_maps` is empty or of other shapes, `idx` is outside of the batch, or there are not as
            many labels as positions.
    """
    if not isinstance(attention_maps, Sequence):
        attention_maps = [attention_maps]
    layers = _layers(attention_maps, rank=4, shape="[B, H, T, S]")
    check_sizes(0, idx=idx, first_layer=first_layer)
    if idx >= len(layers[0]):
        raise InputError(f"idx is {idx}; it must be at least 0 and below {len(layers[0])}, the size of the batch")
    maps = [layer[idx] for layer in layers]  # L times [H T S]
    num_queries, num_keys = maps[0].shape[-2:]
    key_labels = _labels("input_data", input_data, idx, num_keys)
    name, data = ("input_data", input_data) if query_data is None else ("query_data", query_data)
    panels = _Panels.of(maps, key_labels, _labels(name, data, idx, num_queries))
    figure = _figure(panels.width, panels.height)
    _draw_maps(figure, maps, panels, first_layer)
    return figure


class _Panels(NamedTuple):
    """Where the maps of attention heads stand, and their labels; lengths are in inches."""

    columns: int  # heads side by side
    rows: int  # of heads, of one layer
    width: float  # of all layers together
    height: float
    key_ticks: dict[int, str]  # positions that have a label
    query_ticks: dict[int, str]

    @classmethod
    def of(cls, maps: Sequence[Float[np.ndarray, "H T S"]], keys: Sequence[str], queries: Sequence[str]) -> "_Panels":
        """Cells are squares, smaller where there are many of them, of heads or of layers."""
        num_heads = len(maps[0])
        longest_side = max(2.0, 6.0 / (len(maps) * num_heads) ** 0.25)
        cell = min(MAX_CELL, longest_side / max(len(keys), len(queries)))
        key_ticks, query_ticks = (_ticks(labels, cell) for labels in (keys, queries))
        width = max(cell * len(keys), 0.7) + 0.3 + LETTER * max(map(len, query_ticks.values()))
        height = max(cell * len(queries), 0.4) + 0.5 + LETTER * max(map(len, key_ticks.values()))
        rows = -(-num_heads // max(1, int(MAX_WIDTH / width)))
        columns = -(-num_heads // rows)
        bar, title, axis_label = 0.9, 0.3, 0.4
        total_height = len(maps) * (rows * height + title) + axis_label
        return cls(columns, rows, columns * width + bar + axis_label, total_height, key_ticks, query_ticks)


def _ticks(labels: Sequence[str], cell: float) -> dict[int, str]:
    """As many of the positions' labels as there is room for."""
    step = max(1, round(LINE / cell))
    return {place: labels[place][:MAX_LABEL] for place in range(0, len(labels), step)}


def _draw_maps(
    figure: "FigureBase", maps: Sequence[Float[np.ndarray, "H T S"]], panels: _Panels, first_layer: int = 0
) -> None:
    rotation = "vertical" if max(map(len, panels.key_ticks.values())) > 2 else "horizontal"
    figure.supxlabel("Key", fontsize="medium")
    figure.supylabel("Query", fontsize="medium")
    for number, part in enumerate(figure.subfigures(len(maps), 1, squeeze=False)[:, 0]):
        part.suptitle(f"Layer {first_layer + number}", fontsize="medium")
        axes = part.subplots(panels.rows, panels.columns, squeeze=False).flatten()
        for head, (ax, weights) in enumerate(zip(axes, maps[number], strict=False)):
            image = ax.imshow(weights, vmin=0, vmax=maps[number].max(), cmap="viridis", interpolation="nearest")
            ax.set_title(f"Head {head}", fontsize="small")
            ax.tick_params(labelsize=LETTERS, length=2)
            ax.set_xticks(list(panels.key_ticks), list(panels.key_ticks.values()), rotation=rotation, **PLAIN)
            ax.set_yticks(list(panels.query_ticks), list(panels.query_ticks.values()), **PLAIN)
            ax.label_outer()
        for ax in axes[len(maps[number]) :]:
            ax.remove()
        bar = part.colorbar(image, ax=axes[: len(maps[number])].tolist(), fraction=0.05, shrink=0.9, aspect=12)
        bar.ax.tick_params(labelsize=LETTERS)


def _layers(maps: Sequence[ArrayLike], rank: int, shape: str) -> list[np.ndarray]:
    layers = [np.asarray(layer) for layer in maps] if isinstance(maps, Iterable) else []
    shapes = [layer.shape for layer in layers]
    if not layers or len(set(shapes)) != 1 or len(shapes[0]) != rank or 0 in shapes[0]:
        raise InputError(f"attention_maps has arrays of shapes {shapes}; it must hold one {shape} for each layer")
    return layers


def _labels(
    name: str, data: Shaped[ArrayLike, "B N"] | Sequence[Sequence[str]] | None, idx: int, number: int
) -> list[str]:
    if data is None:
        return [str(token) for token in range(number)]
    rows = data if isinstance(data, Sequence) else np.asarray(data)
    if isinstance(data, str) or (isinstance(rows, np.ndarray) and rows.ndim != 2) or len(rows) <= idx:
        raise InputError(f"{name} is {shortened(data)}; it must be [B, positions], with B above idx, which is {idx}")
    labels = [str(token) for token in rows[idx]]
    if len(labels) != number:
        raise InputError(f"{name} has {len(labels)} labels for {number} positions; there must be as many")
    return labels


def plot_positional_encoding(d_model: int, length: int) -> "Figure":
    """Draw the sinusoidal table as an image: positions to the right, hidden dimensions upward.

    Raises:
        InputError: `d_model` or `length` is below 1.
    """
    figure = _figure(8.0, 4.0)
    ax = figure.subplots()
    table = sinusoidal_table(length, d_model)
    image = ax.imshow(table.T, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", origin="lower", interpolation="nearest")
    figure.colorbar(image, ax=ax)
    ax.set(xlabel="Position in the sequence", ylabel="Hidden dimension", title="Sinusoidal positional encoding")
    return figure


def plot_curves(
    curves: Mapping[str, Num[ArrayLike, "N 2"]],
    x_label: str = "Step",
    y_label: str = "",
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> "Figure":
    """Draw curves in one frame, with their names beside it.

    Args:
        curves: by the name of each, its points (x, y), `[N, 2]`.
        x_label: of the x-axis.
        y_label: of the y-axis.
        log_x: a logarithmic x-axis.
        log_y: a logarithmic y-axis.

    Raises:
        InputError: there is no curve, or one of another shape, or without points.
    """
    shapes = {name: np.shape(points) for name, points in curves.items()} if isinstance(curves, Mapping) else {}
    if not shapes or any(len(shape) != 2 or shape[0] < 1 or shape[1] != 2 for shape in shapes.values()):
        raise InputError(f"curves has the shapes {shapes}; it must hold at least one curve, each [N, 2]")
    figure = _figure(7.0, 3.5)
    ax = figure.subplots()
    for name, points in curves.items():
        ax.plot(*np.asarray(points).T, label=name)
    ax.set(xlabel=x_label, ylabel=y_label, xscale="log" if log_x else "linear", yscale="log" if log_y else "linear")
    for text in (ax.xaxis.label, ax.yaxis.label, *figure.legend(loc="outside right upper").get_texts()):
        text.set(**PLAIN)
    return figure


def plot_image_sets(images: Num[ArrayLike, "N S ..."], anomalies: Int[ArrayLike, " N"]) -> "Figure":
    """Draw sets of images, one a row, with a frame around each set's anomaly.

    Args:
        images: `[N, S, height, width]` in grey or `[N, S, height, width, 3]` in colour.
        anomalies: `[N]`, the position of each set's anomaly.

    Raises:
        InputError: the images are of another shape, or there is not one anomaly for each set, at one of its positions.
    """
    num_sets, set_size = _check_images(images, "[N, S, height, width]")
    if np.shape(anomalies) != (num_sets,) or not np.isin(anomalies, np.arange(set_size)).all():
        raise InputError(f"anomalies is {shortened(anomalies)}; it must hold {num_sets} positions, 0 … {set_size - 1}")
    figure = _figure(float(set_size), 1.15 * num_sets)
    rows = figure.subplots(num_sets, set_size, squeeze=False)
    for row, images_of_set, anomaly in zip(rows, np.asarray(images), np.asarray(anomalies), strict=True):
        _draw_set(row, images_of_set, {int(anomaly): "tab:red"})
    return figure


def plot_set_prediction(
    images: Num[ArrayLike, "S ..."],
    probabilities: Float[ArrayLike, " S"],
    anomaly: int,
    attention_maps: Sequence[Float[ArrayLike, "H S N"]],
) -> "Figure":
    """Draw a set, the probability of each image being the odd one out, and every layer's and head's attention map.

    The images are numbered; the anomaly has a green frame, another one that was chosen a red one.

    Args:
        images: `[S, height, width]` in grey or `[S, height, width, 3]` in colour.
        probabilities: `[S]`.
        anomaly: position of the anomaly.
        attention_maps: one `[H, S, N]` for each layer, of N keys: the images, or the learned points of an `ISAB`.

    Raises:
        InputError: an argument is of another shape, or `anomaly` is no position of the set.
    """
    (set_size,) = _check_images(images, "[S, height, width]")
    maps = _layers(attention_maps, rank=3, shape="[H, S, N]")  # L times [H S N]
    if np.shape(anomaly) != () or not np.isin(anomaly, np.arange(set_size)):
        raise InputError(f"anomaly is {shortened(anomaly)}; it must be a position, at least 0 and below {set_size}")
    if np.shape(probabilities) != (set_size,):
        raise InputError(f"probabilities has shape {np.shape(probabilities)}; it must be ({set_size},)")
    chosen = int(np.argmax(probabilities))
    panels = _Panels.of(maps, *[[str(place) for place in range(set_size)]] * 2)
    figure = _figure(max(float(set_size), panels.width), 1.8 + panels.height)
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.8, panels.height))[:, 0]
    row = top.subplots(1, set_size, squeeze=False)[0]
    _draw_set(row, images, {chosen: "tab:red", anomaly: "tab:green"})
    top.suptitle(f"Odd one out: {anomaly} (green frame). Chosen: {chosen}{' (red frame)' * (chosen != anomaly)}")
    for number, (ax, probability) in enumerate(zip(row, np.asarray(probabilities), strict=True)):
        ax.set_title(f"{number}: {probability:.1%}", fontsize="small")
    _draw_maps(bottom, maps, panels)
    return figure


def _check_images(images: ArrayLike, grey: str) -> tuple[int, ...]:
    """The axes of images before height and width, where `grey` is the shape of grey ones."""
    shape = np.shape(images)
    num_axes = grey.count(",") + 1
    if 0 in shape or len(shape) < num_axes or shape[num_axes:] not in ((), (3,), (4,)):
        raise InputError(f"images has shape {shape}; it must be {grey}, or with a last axis of 3 colours")
    return shape[: num_axes - 2]


def _draw_set(axes: Iterable["Axes"], images: Num[ArrayLike, "S ..."], frames: Mapping[int, str]) -> None:
    """The images, some with a frame of a colour."""
    for position, (ax, image) in enumerate(zip(axes, np.asarray(images), strict=True)):
        ax.imshow(image, cmap="gray")
        ax.set(xticks=(), yticks=())
        for spine in ax.spines.values():
            spine.set(visible=position in frames, color=frames.get(position), linewidth=3)
