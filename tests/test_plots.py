"""Plots: figures of what they are given, with the labels a reader needs, and no window."""

import sys

import numpy as np
import pytest

from transformer_jax import (
    noam_schedule,
    plot_attention_maps,
    plot_positional_curves,
    plot_positional_encoding,
    plot_schedules,
)
from transformer_jax.positional import sinusoidal_table

B, H, T, L = 2, 3, 5, 2
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


def test_without_input_the_positions_are_numbered():
    (ax, *_) = plot_attention_maps(None, MAPS).axes
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "2", "3", "4"]


def test_the_positional_table_as_an_image_and_as_curves():
    image = plot_positional_encoding(6, 11).axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, sinusoidal_table(11, 6).T)
    curves = plot_positional_curves(6, 11, (0, 3)).axes
    assert len(curves) == 2
    np.testing.assert_array_equal(curves[1].lines[0].get_ydata(), sinusoidal_table(11, 6)[:, 3])


def test_schedules_are_drawn_by_name():
    (ax,) = plot_schedules({"noam": noam_schedule(7, 5)}, 20).axes
    steps, rates = ax.lines[0].get_data()
    assert rates[list(steps).index(5)] == pytest.approx((7 * 5) ** -0.5)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["noam"]


def test_a_figure_can_be_written_and_opens_no_window(tmp_path):
    plot_attention_maps(None, MAPS).savefig(tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
