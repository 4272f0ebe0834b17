"""Pictures of an example's attention maps during training."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, UInt8

from transformer_jax.errors import InputError
from transformer_jax.fitted.viewer import LabelledMaps, drawable
from transformer_jax.plots import later_keys
from transformer_jax.runs.loggers import Logger
from transformer_jax.training.callbacks import Callback, Evaluation
from transformer_jax.training.inspected_example import Label
from transformer_jax.trees import Params

CELL = 12  # pixels for a letter, and at least for a weight
LEAST_SIDE = 96  # pixels of a map's longer side, at least
GREY = 96  # behind the labels, and of hidden keys


class LogAttention(Callback):
    """Logs the attention maps of an example at each evaluation: a picture for each layer.

    Args:
        loggers: get the pictures `attention/encoder/layer 0` and so on.
        maps: computes the maps from parameters.
    """

    def __init__(self, loggers: Sequence[Logger], maps: Callable[[Params], LabelledMaps]) -> None:
        self._loggers = loggers
        self._maps = maps

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Draw and log the maps of the evaluated parameters."""
        try:
            labelled = self._maps(evaluation.params)
        except InputError:  # the weights are not finite, nor is the loss, which the loop reports
            return
        for kind, layers in labelled.maps.items():
            queries = labelled.query_labels[kind]
            keys = labelled.key_labels[kind]
            for number, maps in enumerate(layers):
                picture = attention_picture(maps, queries, keys)
                for logger in self._loggers:
                    logger.log_image(evaluation.step, f"attention/{kind}/layer {number}", picture)


def attention_picture(
    maps: Float[np.ndarray, "H T S"], queries: Sequence[Label], keys: Sequence[Label]
) -> UInt8[np.ndarray, "height width"]:
    """Draw the maps of a layer's heads side by side, with labels: black is 0, white a map's largest weight.

    Later keys that a causal mask hides are grey, as are the margins.

    The brightness is the square root of the weight: otherwise, a map with one large weight in each row is almost black.

    Pillow takes 2 ms for 4 heads of 11 × 14 on a CPU, a matplotlib figure 0.6 s.
    """
    from PIL import Image, ImageDraw

    num_heads, length, num_keys = maps.shape
    cell = max(CELL, -(-LEAST_SIDE // max(length, num_keys)))
    brightest = np.maximum(maps.max((1, 2), keepdims=True), np.finfo(np.float32).tiny)
    grey = np.rint(255 * np.sqrt(maps / brightest)).astype(np.uint8)
    grey[:, later_keys([maps])] = GREY
    query_names = [drawable(label).replace("␣", "_") for label in queries]
    key_names = [drawable(label).replace("␣", "_") for label in keys]
    left = CELL * max(map(len, query_names))  # width of the names beside the map
    top = CELL * max(map(len, key_names))  # height of the names above the map
    panel = Image.new("L", (left + num_keys * cell, top + length * cell), GREY)  # of one head
    draw = ImageDraw.Draw(panel)
    for place, name in enumerate(query_names):
        draw.text((1, top + place * cell), name, fill=255)
    for place, name in enumerate(key_names):
        draw.text((left + place * cell, 1), "\n".join(name), fill=255, spacing=1)
    picture = np.stack([np.asarray(panel)] * num_heads, 1)  # [height H width]
    pixels = grey.repeat(cell, 1).repeat(cell, 2)  # [H T·cell S·cell]
    picture[top:, :, left:] = pixels.swapaxes(0, 1)
    return picture.reshape(len(picture), -1)
