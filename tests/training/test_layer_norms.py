"""Norms by layer, and the pictures of attention."""

import numpy as np
import pytest

from transformer_jax.devices.packing import Packing
from transformer_jax.runs.loggers import Logger
from transformer_jax.training.attention_pictures import LogAttention, attention_picture
from transformer_jax.training.callbacks import Evaluation
from transformer_jax.training.layer_norms import gradient_norms, layer_norms, layer_of, layers_of


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


def test_the_norm_of_a_layer_is_that_of_all_its_arrays():
    params = {"encoder": {"layers_0": {"a": np.full(2, 3.0), "b": np.full((2, 2), 2.0)}, "layers_1": {"a": np.ones(7)}}}
    norms = layer_norms(params)
    assert norms["encoder/layers_0"] == pytest.approx(34**0.5)
    assert norms["encoder/layers_1"] == pytest.approx(7**0.5)


def test_the_norms_of_a_gradient_by_layer_are_those_of_its_arrays_packed_or_not():
    like = {"encoder": {"layers_0": {"a": np.full(2, 3.0), "b": np.full((2, 2), 2.0)}, "layers_1": {"a": np.ones(7)}}}
    layers = layers_of(like)
    packing = Packing(like, max_size=4)  # joins the two of layer 0, and leaves out the third
    packed = layers._replace(places=packing.pack(layers.places))
    for gradients, of in ((like, layers), (packing.pack(like), packed)):
        norms = dict(zip(layers.names, gradient_norms(gradients, of).tolist(), strict=True))
        assert norms == pytest.approx({"encoder/layers_0": 34**0.5, "encoder/layers_1": 7**0.5})


def test_layers_whose_arrays_lie_in_one_vector_are_told_apart():
    like = {"a": np.full(3, 2.0), "b": np.full(5, 1.0), "c": np.full(11, 4.0)}
    packing, layers = Packing(like, max_size=11), layers_of(like)
    norms = gradient_norms(packing.pack(like), layers._replace(places=packing.pack(layers.places)))
    np.testing.assert_allclose(norms, np.sqrt([12, 5, 176]), rtol=1e-6)


def test_a_picture_has_the_heads_side_by_side_from_black_to_their_largest_weight():
    maps = np.zeros((2, 3, 5), np.float32)
    maps[0, 1, 4] = 0.25
    maps[1, 2, 0] = 1.0
    picture = attention_picture(maps)
    size = 22  # pixels of a cell: the least that make 3 rows at least 64 high
    assert picture.shape == (3 * size, 11 * size)
    cells = picture[::size, ::size]
    expected = np.zeros((3, 11), np.uint8)
    expected[1, 4] = expected[2, 6] = 255
    expected[:, 5] = 128  # the gap
    np.testing.assert_array_equal(cells, expected)


def test_the_first_example_is_drawn_at_each_evaluation_for_every_layer():
    logged = []

    class Log(Logger):
        def log_image(self, step, name, image):
            logged.append((step, name, image.max()))

    def maps(params):
        return {"encoder": [np.full((2, 1, 64, 64), params["level"], np.float32), np.zeros((2, 1, 64, 64), np.float32)]}

    LogAttention([Log()], maps).on_evaluation(Evaluation(7, 1, {}, {"level": 0.5}))
    assert logged == [(7, "attention/encoder/layer 0", 255), (7, "attention/encoder/layer 1", 0)]
