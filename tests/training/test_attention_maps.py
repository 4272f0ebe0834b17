"""Attention maps with labels: what they hold, and their pictures."""

import numpy as np
import pytest

from transformer_jax import InputError
from transformer_jax.fit.attention_pictures import CELL, GREY, LEAST_SIDE, LogAttention, attention_picture
from transformer_jax.fitted.viewer import LabelledMaps, MapsOfInputs, drawable
from transformer_jax.runs.loggers import Logger
from transformer_jax.training.callbacks import Evaluation

RNG = np.random.default_rng(0)


@pytest.fixture
def maps() -> LabelledMaps:
    shapes = {"encoder": (3, 3), "cross": (2, 3)}
    return LabelledMaps(
        {kind: [RNG.uniform(size=(5, *shape)) for _ in range(7)] for kind, shape in shapes.items()},
        query_labels={"encoder": ["a", " ", "日"], "cross": ["start", "\a"]},
        key_labels={"encoder": ["a", " ", "日"], "cross": ["a", " ", "日"]},
    )


def test_the_last_kind_is_drawn_with_all_its_layers_and_heads(maps):
    axes = [ax for ax in maps.plot().axes if ax.get_title()]  # the others are bars of colours
    assert len(axes) == 7 * 5
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["a", "␣", "65E5"]
    assert [label.get_text() for label in axes[0].get_yticklabels()] == ["start", "7"]
    np.testing.assert_array_equal(axes[5 + 2].images[0].get_array(), maps.maps["cross"][1][2])


def test_one_layer_of_one_kind_is_drawn(maps):
    figure = maps.plot("encoder", layer=6)
    assert figure.subfigs[0].get_suptitle() == "Layer 6"
    axes = [ax for ax in figure.axes if ax.get_title()]
    assert len(axes) == 5
    np.testing.assert_array_equal(axes[3].images[0].get_array(), maps.maps["encoder"][6][3])


def test_several_inputs_are_drawn_in_one_figure(maps):
    longer = LabelledMaps({"encoder": [RNG.uniform(size=(5, 11, 11))]}, {"encoder": range(11)}, {"encoder": range(11)})
    several = MapsOfInputs([maps, longer])
    figure = several.plot("encoder", layer=0)
    axes = [ax for ax in figure.axes if ax.get_title()]
    assert [ax.images[0].get_array().shape for ax in axes] == 5 * [(3, 3)] + 5 * [(11, 11)]
    np.testing.assert_array_equal(axes[5 + 2].images[0].get_array(), longer.maps["encoder"][0][2])
    assert figure.get_figheight() > maps.plot("encoder", 0).get_figheight()
    with pytest.raises(InputError, match="kind is 'cross'; it must be one of encoder"):
        several.plot("cross")


@pytest.mark.parametrize("hides", [True, False])
def test_keys_that_a_causal_mask_hides_have_no_colour_and_the_picture_says_so(hides):
    weights = np.tril(np.ones((2, 3, 3), np.float32)) / np.array([[1], [2], [3]], np.float32)
    weights[0, 0, 2] = 0 if hides else 0.25
    labelled = LabelledMaps({"decoder": [weights]}, {"decoder": "abc"}, {"decoder": "abc"})
    figure = labelled.plot()
    (first, *_) = (ax.images[0].get_array() for ax in figure.axes if ax.get_title())
    assert np.ma.getmaskarray(np.ma.masked_invalid(first)).sum() == (3 if hides else 0)
    np.testing.assert_array_equal(np.tril(np.ma.filled(first, 0)), np.tril(weights[0]))
    assert figure.get_supxlabel() == ("Key, later ones are hidden" if hides else "Key")
    pixels = attention_picture(weights, "abc", "abc")
    cell = -(-LEAST_SIDE // 3)
    assert pixels[CELL + cell // 2, CELL + cell + cell // 2] == (GREY if hides else 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kind": "decoder"}, "kind is 'decoder'; it must be one of encoder, cross"),
        ({"layer": 7}, "layer is 7; it must be at least 0 and below 7"),
        ({"layer": -1}, "layer is -1"),
    ],
)
def test_what_is_not_there_is_an_error(maps, arguments, message):
    with pytest.raises(InputError, match=message):
        maps.plot(**arguments)


def test_numbers_and_words_are_drawn_as_they_are():
    assert [drawable(label) for label in (3, 0, "start", "é", "·")] == ["3", "0", "start", "é", "·"]


def test_a_picture_has_the_heads_side_by_side_from_black_to_their_largest_weight_with_labels():
    maps = np.zeros((2, 3, 5), np.float32)
    maps[0, 1, 2:] = 0.01, 0.04, 0.25
    maps[1, 2, 0] = 1.0
    picture = attention_picture(maps, ["a", "bc", "d"], range(5))
    cell = -(-LEAST_SIDE // 5)  # of so few keys; the longest labels have two letters, and one
    left, top, width = 2 * CELL, CELL, 2 * CELL + 5 * cell
    assert picture.shape == (top + 3 * cell, 2 * width)
    for head in range(2):
        cells = picture[top + cell // 2 :: cell, head * width + left + cell // 2 : (head + 1) * width : cell]
        np.testing.assert_array_equal(cells, np.rint(255 * np.sqrt(maps[head] / maps[head].max())))
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
    assert logged == [
        (7, f"attention/encoder/layer {number}", (CELL + LEAST_SIDE, CELL + LEAST_SIDE)) for number in (0, 1)
    ]
