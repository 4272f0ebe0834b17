"""Plots: figures of what they are given, with the labels a reader needs, and no window."""

import sys

import numpy as np
import pytest

from transformer_jax.nn.positions import sinusoidal_table
from transformer_jax.plots import (
    plot_attention_maps,
    plot_image_sets,
    plot_positional_encoding,
    plot_set_prediction,
)

B, H, T, S, L = 2, 3, 5, 7, 2
MAPS = [np.random.default_rng(layer).dirichlet(np.ones(T), size=(B, H, T)) for layer in range(L)]


@pytest.mark.parametrize(("layers", "heads"), [(L, H), (1, H), (L, 1), (1, 1)])
def test_attention_maps_stand_in_a_row_for_each_layer_and_a_column_for_each_head(layers, heads):
    tokens = np.arange(B * T).reshape(B, T)
    figure = plot_attention_maps(tokens, [layer[:, :heads] for layer in MAPS[:layers]], idx=1)
    assert len(figure.axes) == layers * heads
    for i, ax in enumerate(figure.axes):
        layer, head = divmod(i, heads)
        np.testing.assert_array_equal(ax.images[0].get_array(), MAPS[layer][1, head])
        assert ax.get_title() == f"Layer {layer + 1}, head {head + 1}"
        for labels in (ax.get_xticklabels(), ax.get_yticklabels()):
            assert [label.get_text() for label in labels] == ["5", "6", "7", "8", "9"]


def labels_of(ax) -> tuple[list[str], list[str]]:
    """At the keys, which are the columns, and at the queries."""
    return tuple([label.get_text() for label in axis.get_ticklabels()] for axis in (ax.xaxis, ax.yaxis))


def test_cross_attention_has_the_targets_labels_at_its_queries():
    cross = np.random.default_rng(9).dirichlet(np.ones(S), size=(B, H, T))
    sources, targets = [list("abcdefg"), list("ABCDEFG")], [list("vwxyz"), list("VWXYZ")]
    (ax, *_) = plot_attention_maps(sources, [cross], idx=1, query_data=targets).axes
    assert labels_of(ax) == (list("ABCDEFG"), list("VWXYZ"))
    np.testing.assert_array_equal(ax.images[0].get_array(), cross[1, 0])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Key", "Query")


def framed(ax) -> bool:
    return all(spine.get_visible() for spine in ax.spines.values())


@pytest.mark.parametrize("colours", [(), (3,)])
def test_sets_of_images_stand_in_rows_with_a_frame_around_each_anomaly(colours):
    images, anomalies = np.random.default_rng(0).random((3, 5, 2, 2, *colours)), np.array([4, 0, 2])
    axes = plot_image_sets(images, anomalies).axes
    assert len(axes) == 3 * 5
    for i, ax in enumerate(axes):
        row, position = divmod(i, 5)
        np.testing.assert_array_equal(ax.images[0].get_array(), images[row, position])
        assert framed(ax) == (position == anomalies[row])
        assert any(spine.get_visible() for spine in ax.spines.values()) == framed(ax)
    assert axes[4].get_gridspec().get_geometry() == (3, 5)


def test_a_predicted_set_shows_its_probabilities_and_every_layers_and_heads_map():
    images, maps = np.random.default_rng(0).random((T, 2, 2)), [layer[1] for layer in MAPS]
    axes = plot_set_prediction(images, np.array([0.125, 0.5, 0.25, 0.0625, 0.0625]), 3, maps).axes
    top, bottom = axes[:T], axes[T:]
    assert [ax.get_title() for ax in top] == ["12.5%", "50.0%", "25.0%", "6.2%", "6.2%"]
    assert [framed(ax) for ax in top] == [False, False, False, True, False]
    for ax, image in zip(top, images, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), image)
    assert len(bottom) == L * H
    for i, ax in enumerate(bottom):
        layer, head = divmod(i, H)
        assert ax.get_title() == f"Layer {layer + 1}, head {head + 1}"
        np.testing.assert_array_equal(ax.images[0].get_array(), maps[layer][head])


def test_the_positional_table_is_an_image():
    image = plot_positional_encoding(6, 11).axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, sinusoidal_table(11, 6).T)


def test_a_figure_can_be_written_and_opens_no_window(tmp_path):
    plot_attention_maps(None, MAPS).savefig(tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
