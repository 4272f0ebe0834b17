"""Figures from NumPy arrays. Each function returns a figure that belongs to no window; `savefig` writes it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Num, Shaped

from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.positions import sinusoidal_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _figure(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def plot_attention_maps(
    input_data: Shaped[ArrayLike, "B S"] | Sequence[Sequence[str]] | None,
    attention_maps: Sequence[Float[ArrayLike, "B H T S"]] | Float[ArrayLike, "B H T S"],
    idx: int = 0,
    query_data: Shaped[ArrayLike, "B T"] | Sequence[Sequence[str]] | None = None,
) -> "Figure":
    """Draw the attention weights of one batch element: rows are layers, columns are heads.

    Args:
        input_data: `[B, S]`, what stands at each key's position, for the tick labels; None numbers the positions.
        attention_maps: one `[B, H, T, S]` for each layer, as `get_attention_maps` gives them, or that of one layer.
        idx: which element of the batch.
        query_data: `[B, T]`, what stands at each query's position, in cross-attention; None for the same as the keys.

    Raises:
        InputError: `attention_maps` is empty or of other shapes, `idx` is outside of the batch, or there are not as
            many labels as positions.
    """
    if not isinstance(attention_maps, Sequence):
        attention_maps = [attention_maps]
    layers = _layers(attention_maps, rank=4, shape="[B, H, T, S]")
    check_sizes(0, idx=idx)
    if idx >= len(layers[0]):
        raise InputError(f"idx is {idx}; it must be at least 0 and below {len(layers[0])}, the size of the batch")
    maps = [layer[idx] for layer in layers]  # L times [H T S]
    num_layers, num_heads = len(maps), len(maps[0])
    num_queries, num_keys = maps[0].shape[-2:]
    key_labels = _labels("input_data", input_data, idx, num_keys)
    query_labels = key_labels
    if query_data is not None or num_queries != num_keys:
        name, data = ("input_data", input_data) if query_data is None else ("query_data", query_data)
        query_labels = _labels(name, data, idx, num_queries)
    size = 1.2 + 0.18 * max(num_queries, num_keys)  # inches, so that the tick labels stay legible
    figure = _figure(size * num_heads, size * num_layers)
    axes = figure.subplots(num_layers, num_heads, squeeze=False)
    _draw_maps(axes, maps)
    for ax in axes.flat:
        ax.set_xticks(range(num_keys), key_labels)
        ax.set_yticks(range(num_queries), query_labels)
        ax.set(xlabel="Key", ylabel="Query")
    return figure


def _draw_maps(axes: np.ndarray, maps: Sequence[Float[np.ndarray, "H T S"]]) -> None:
    for (layer, head), ax in np.ndenumerate(axes):
        ax.imshow(maps[layer][head], vmin=0, cmap="viridis")
        ax.set_title(f"Layer {layer + 1}, head {head + 1}")


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
        raise InputError(f"{name} is {data!r}; it must be [B, positions], with B above idx, which is {idx}")
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


def plot_image_sets(images: Num[ArrayLike, "N S ..."], anomalies: Int[ArrayLike, " N"]) -> "Figure":
    """Draw sets of images, one a row, with a frame around each set's anomaly.

    Args:
        images: `[N, S, height, width]` in grey or `[N, S, height, width, 3]` in colour.
        anomalies: `[N]`, the position of each set's anomaly.

    Raises:
        InputError: the images are of another shape, or there is not one anomaly for each set, at one of its positions.
    """
    _check_images(images, ["N", "S"])
    num_sets, set_size = np.shape(images)[:2]
    if np.shape(anomalies) != (num_sets,):
        raise InputError(f"anomalies has shape {np.shape(anomalies)}; it must be ({num_sets},), one for each set")
    if not _are_positions(anomalies, set_size):
        raise InputError(f"anomalies is {anomalies}; it must hold positions, each at least 0 and below {set_size}")
    figure = _figure(float(set_size), 1.15 * num_sets)
    rows = figure.subplots(num_sets, set_size, squeeze=False)
    for row, images_of_set, anomaly in zip(rows, np.asarray(images), np.asarray(anomalies), strict=True):
        _draw_set(row, images_of_set, int(anomaly))
    return figure


def plot_set_prediction(
    images: Num[ArrayLike, "S ..."],
    probabilities: Float[ArrayLike, " S"],
    anomaly: int,
    attention_maps: Sequence[Float[ArrayLike, "H S S"]],
) -> "Figure":
    """Draw a set, the probability of each image being the odd one out, and every layer's and head's attention map.

    Args:
        images: `[S, height, width]` in grey or `[S, height, width, 3]` in colour.
        probabilities: `[S]`.
        anomaly: position of the anomaly.
        attention_maps: one `[H, S, S]` for each layer.

    Raises:
        InputError: an argument is of another shape, or `anomaly` is no position of the set.
    """
    _check_images(images, ["S"])
    maps = _layers(attention_maps, rank=3, shape="[H, S, S]")  # L times [H S S]
    if not _are_positions([anomaly], len(np.asarray(images))):
        raise InputError(f"anomaly is {anomaly!r}; it must be a position, at least 0 and below {np.shape(images)[0]}")
    if np.shape(probabilities) != np.shape(images)[:1]:
        raise InputError(f"probabilities has shape {np.shape(probabilities)}; it must be {np.shape(images)[:1]}")
    set_size, num_layers, num_heads = len(np.asarray(images)), len(maps), len(maps[0])
    figure = _figure(max(float(set_size), 2.2 * num_heads), 1.6 + 2.4 * num_layers)
    top, bottom = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.6, 2.4 * num_layers))[:, 0]
    row = top.subplots(1, set_size, squeeze=False)[0]
    _draw_set(row, images, anomaly)
    for ax, probability in zip(row, np.asarray(probabilities), strict=True):
        ax.set_title(f"{probability:.1%}", fontsize="small")
    axes = bottom.subplots(num_layers, num_heads, squeeze=False)
    _draw_maps(axes, maps)
    for ax in axes.flat:
        ax.set(xticks=range(set_size), yticks=range(set_size))
    return figure


def _check_images(images: ArrayLike, leading: Sequence[str]) -> None:
    shape = np.shape(images)
    inner = shape[len(leading) :]
    if 0 in shape or len(inner) not in (2, 3) or inner[2:] not in ((), (3,), (4,)):
        axes = ", ".join(leading)
        raise InputError(f"images has shape {shape}; it must be [{axes}, height, width] or [{axes}, height, width, 3]")


def _are_positions(values: object, number: int) -> bool:
    """Whether these are integers, at least one, each at least 0 and below `number`."""
    array = np.asarray(values)
    is_list = array.ndim == 1 and array.size > 0 and np.issubdtype(array.dtype, np.integer)
    return is_list and bool(((array >= 0) & (array < number)).all())


def _draw_set(axes: Iterable["Axes"], images: Num[ArrayLike, "S ..."], anomaly: int) -> None:
    for position, (ax, image) in enumerate(zip(axes, np.asarray(images), strict=True)):
        ax.imshow(image, cmap="gray")
        ax.set(xticks=(), yticks=())
        for spine in ax.spines.values():
            spine.set(visible=position == anomaly, color="tab:red", linewidth=3)
