"""Pictures of attention maps, for the loggers, as the training goes on."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from jaxtyping import Float, UInt8

from transformer_jax.runs.loggers import Logger
from transformer_jax.training.callbacks import Callback, Evaluation
from transformer_jax.trees import Params

MIN_HEIGHT = 64  # pixels of a picture; the cells of a small map become squares of several pixels
GAP = 1  # cells between the maps of two heads

Maps = Mapping[str, Sequence[Float[np.ndarray, "B H T S"]]]  # of each layer, by kind: encoder, decoder, cross


class LogAttention(Callback):
    """Logs the attention maps of one example, the first of a batch, at each evaluation: a picture for each layer.

    Args:
        loggers: that get the pictures, `attention/encoder/layer 0` and so on.
        maps: computes the maps of the batch with these parameters.
    """

    def __init__(self, loggers: Sequence[Logger], maps: Callable[[Params], Maps]) -> None:
        self._loggers, self._maps = loggers, maps

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Draw the maps of the parameters that were evaluated."""
        for kind, layers in self._maps(evaluation.params).items():
            for number, maps in enumerate(layers):
                picture = attention_picture(np.asarray(maps[0], np.float32))
                for logger in self._loggers:
                    logger.log_image(evaluation.step, f"attention/{kind}/layer {number}", picture)


def attention_picture(maps: Float[np.ndarray, "H T S"]) -> UInt8[np.ndarray, "height width"]:
    """The maps of a layer's heads side by side, a row for each query: black is 0, white a map's largest."""
    brightest = np.maximum(maps.max((1, 2), keepdims=True), np.finfo(np.float32).tiny)
    cells = np.pad(maps / brightest, ((0, 0), (0, 0), (0, GAP)), constant_values=0.5)  # [H T S+1]
    row = np.concatenate(list(cells), axis=1)[:, :-GAP]
    size = -(-MIN_HEIGHT // maps.shape[1])
    picture: UInt8[np.ndarray, "height width"] = np.rint(255 * row).astype(np.uint8).repeat(size, 0).repeat(size, 1)
    return picture
