"""Attention maps with labels: what they hold, and their pictures."""

import numpy as np
import pytest

from transformer_jax import InputError
from transformer_jax.training.inspected_example import LabelledMaps, drawable

RNG = np.random.default_rng(0)


@pytest.fixture
def maps() -> LabelledMaps:
    shapes = {"encoder": (3, 3), "cross": (2, 3)}
    return LabelledMaps(
        {kind: [RNG.uniform(size=(5, *shape)) for _ in range(7)] for kind, shape in shapes.items()},
        query_labels={"encoder": ["a", " ", "日"], "cross": ["start", "\a"]},
        key_labels={"encoder": ["a", " ", "日"], "cross": ["a", " ", "日"]},
    )


def ticks(axes) -> tuple[list[str], list[str]]:
    return [label.get_text() for label in axes.get_xticklabels()], [
        label.get_text() for label in axes.get_yticklabels()
    ]


def test_the_last_kind_is_drawn_with_all_its_layers_and_heads(maps):
    axes = [ax for ax in maps.plot().axes if ax.get_title()]  # the others are bars of colours
    assert len(axes) == 7 * 5
    assert ticks(axes[0]) == (["a", "␣", "65E5"], ["start", "7"])
    np.testing.assert_array_equal(axes[5 + 2].images[0].get_array(), maps.maps["cross"][1][2])


def test_one_layer_of_one_kind_is_drawn(maps):
    figure = maps.plot("encoder", layer=6)
    assert figure.subfigs[0].get_suptitle() == "Layer 6"
    axes = [ax for ax in figure.axes if ax.get_title()]
    assert len(axes) == 5
    np.testing.assert_array_equal(axes[3].images[0].get_array(), maps.maps["encoder"][6][3])


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
