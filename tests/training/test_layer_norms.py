"""Norms by layer, and the pictures of attention."""

import numpy as np
import pytest

from transformer_jax.runs.loggers import Logger
from transformer_jax.training.callbacks import CELL, GREY, Evaluation, LogAttention, attention_picture
from transformer_jax.training.inspected_example import LabelledMaps
from transformer_jax.training.metrics import layer_norms, layer_of


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("encoder/layers_0/self_attn/query_proj/kernel", "encoder/layers_0"),
        ("decoder/layers_11/norm_2/scale", "decoder/layers_11"),
        ("output_net/dense/bias", "output_net"),
        ("embedding", "embedding"),
    ],
)
def test_a_layer_is_the_path_up_to_its_number_or_the_first_part(path, layer):
    assert layer_of(path) == layer


def test_stacked_layers_have_norms_of_their_own():
    stacked = {"a": np.arange(1.0, 4).reshape(3, 1, 1) * np.ones((3, 2, 5)), "b": np.zeros((3, 7))}
    norms = layer_norms({"encoder": {"stacked_layers": stacked, "norm": {"scale": np.full(4, 3.0)}}})
    assert norms == pytest.approx({"encoder": 6} | {f"encoder/layers_{i}": (i + 1) * 10**0.5 for i in range(3)})


def test_a_picture_has_the_heads_side_by_side_from_black_to_their_largest_weight_with_labels():
    maps = np.zeros((2, 3, 5), np.float32)
    maps[0, 1, 4] = 0.25
    maps[1, 2, 0] = 1.0
    picture = attention_picture(maps, ["a", "bc", "d"], range(5))
    left, top, width = 2 * CELL, CELL, 7 * CELL  # the longest labels have two letters, and one
    assert picture.shape == (top + 3 * CELL, 2 * width)
    for head in range(2):
        cells = picture[top + CELL // 2 :: CELL, head * width + left + CELL // 2 : (head + 1) * width : CELL]
        np.testing.assert_array_equal(cells, np.rint(255 * maps[head] / maps[head].max()))
        labels = picture[top:, head * width : head * width + left]
        assert labels.min() == GREY
        assert labels.max() > 200


def test_the_first_example_is_drawn_at_each_evaluation_for_every_layer():
    logged = []

    class Log(Logger):
        def log_image(self, step, name, image):
            logged.append((step, name, image.shape))

    def maps(params):
        layer = np.full((1, 4, 4), params["level"], np.float32)
        return LabelledMaps({"encoder": [layer, layer]}, {"encoder": range(4)}, {"encoder": range(4)})

    LogAttention([Log()], maps).on_evaluation(Evaluation(7, 1, {}, {"level": 0.5}))
    assert logged == [(7, f"attention/encoder/layer {number}", (5 * CELL, 5 * CELL)) for number in (0, 1)]
