"""Plots: figures of the given data, with the labels that a reader needs, and without a window."""

import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.text import Text

from transformer_jax.inspection.patching.patch_grid import PatchGrid
from transformer_jax.nn.positions import sinusoidal_table
from transformer_jax.plots import (
    plot_attention_maps,
    plot_curves,
    plot_image_sets,
    plot_positional_encoding,
    plot_set_prediction,
)

B, H, T, S, L = 2, 3, 5, 7, 2
MAPS = [np.random.default_rng(layer).dirichlet(np.ones(T), size=(B, H, T)) for layer in range(L)]


def maps_in(figure) -> list:
    """Return the axes of the heads' maps; the axes of colour bars have no image."""
    return [ax for ax in figure.axes if ax.images and ax.get_title().startswith("Head")]


@pytest.mark.parametrize(("layers", "heads"), [(L, H), (1, 1)])
def test_attention_maps_stand_by_layer_and_head_with_one_scale_for_a_layer(layers, heads):
    tokens = np.arange(B * T).reshape(B, T)
    figure = plot_attention_maps(tokens, [layer[:, :heads] for layer in MAPS[:layers]], idx=1)
    assert [part.get_suptitle() for part in figure.subfigs] == [f"Layer {layer}" for layer in range(layers)]
    assert len(maps_in(figure)) == layers * heads
    for i, ax in enumerate(maps_in(figure)):
        layer, head = divmod(i, heads)
        np.testing.assert_array_equal(ax.images[0].get_array(), MAPS[layer][1, head])
        assert ax.images[0].get_clim() == (0, MAPS[layer][1, :heads].max())
        assert ax.get_title() == f"Head {head}"
        is_outer = head == 0, True  # in the first column, in the last row of the layer's heads
        for labels, are_shown in zip((ax.get_yticklabels(), ax.get_xticklabels()), is_outer, strict=True):
            assert [label.get_text() for label in labels] == (["5", "6", "7", "8", "9"] if are_shown else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "heads", "queries", "keys"),
    [(1, 1, 1, 1), (2, 7, 1, 1), (1, 12, 64, 200), (7, 1, 5, 40), (2, 5, 40, 5)],
)
def test_no_text_leaves_the_canvas_and_cells_are_squares(layers, heads, queries, keys):
    words = [["long word"] * keys]
    maps = [np.ones((1, heads, queries, keys))] * layers
    figure = plot_attention_maps(words, maps, query_data=[["longer word"] * queries])
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text():
            box = text.get_window_extent(renderer)
            assert min(box.x0, box.y0) >= -1  # pixels
            assert box.x1 <= figure.bbox.width + 1
            assert box.y1 <= figure.bbox.height + 1
    for ax in maps_in(figure):
        box = ax.get_window_extent()
        assert box.width / keys == pytest.approx(box.height / queries, rel=1e-3)
        assert box.width * box.height > 0.1 * figure.bbox.width * figure.bbox.height / (layers * heads) or queries == 1


def test_cross_attention_has_the_targets_labels_at_its_queries():
    cross = np.random.default_rng(9).dirichlet(np.ones(S), size=(B, H, T))
    sources, targets = [list("abcdefg"), list("ABCDEFG")], [list("vwxyz"), list("VWXYZ")]
    figure = plot_attention_maps(sources, [cross], idx=1, query_data=targets)
    ax = maps_in(figure)[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == list("ABCDEFG")
    assert [label.get_text() for label in ax.get_yticklabels()] == list("VWXYZ")
    np.testing.assert_array_equal(ax.images[0].get_array(), cross[1, 0])
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("Key", "Query")


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


def test_a_predicted_set_shows_what_is_right_and_what_was_chosen_and_every_layers_and_heads_map():
    images, maps = np.random.default_rng(0).random((T, 2, 2)), [layer[1] for layer in MAPS]
    figure = plot_set_prediction(images, np.array([0.125, 0.5, 0.25, 0.0625, 0.0625]), 3, maps)
    assert figure.subfigs[0].get_suptitle() == "Odd one out: 3 (green frame). Chosen: 1 (red frame)"
    top = figure.axes[:T]
    assert [ax.get_title() for ax in top] == ["0: 12.5%", "1: 50.0%", "2: 25.0%", "3: 6.2%", "4: 6.2%"]
    assert [framed(ax) for ax in top] == [False, True, False, True, False]
    assert [top[i].spines["left"].get_edgecolor() for i in (1, 3)] == [to_rgba("tab:red"), to_rgba("tab:green")]
    for ax, image in zip(top, images, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), image)
    shown = [ax.images[0].get_array() for ax in maps_in(figure)]
    np.testing.assert_array_equal(shown, np.concatenate(maps))


def test_curves_have_their_numbers_and_names_and_the_scales_that_are_asked_for():
    curves = {"seen": np.array([[1, 0.5], [10, 0.25]]), "new": np.array([[5, 3]])}
    figure = plot_curves(curves, "Epoch", "Loss", log_x=True)
    (ax,) = figure.axes
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 0.5], [10, 0.25]], [[5, 3]]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["seen", "new"]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale(), ax.get_yscale()) == ("Epoch", "Loss", "log", "linear")


def test_the_positional_table_is_an_image():
    image = plot_positional_encoding(6, 11).axes[0].images[0].get_array()
    np.testing.assert_array_equal(image, sinusoidal_table(11, 6).T)


def test_a_figure_can_be_written_and_opens_no_window(tmp_path):
    plot_attention_maps(None, MAPS).savefig(tmp_path / "maps.png")
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


FORMULAS = ["$$", "$5 or $6", "$\\frac{$"]


@pytest.mark.parametrize(
    "plot",
    [
        lambda labels: plot_attention_maps([labels], [np.ones((1, 1, 3, 3))], query_data=[labels]),
        lambda labels: plot_curves({label: np.ones((2, 2)) for label in labels}, labels[0], labels[1], log_x=True),
        lambda labels: PatchGrid(np.ones((2, 3)), ("layers", "positions")).plot(labels),
    ],
)
def test_labels_are_shown_as_they_are_and_never_as_formulas(plot):
    figure = plot(FORMULAS)
    FigureCanvasAgg(figure).draw()  # a formula that can't be parsed would be an error
    given = [text for text in figure.findobj(Text) if text.get_text() in FORMULAS]
    assert len(given) >= 3
    assert not any(text.get_parse_math() for text in given)
    assert all(text.get_parse_math() for text in figure.findobj(Text) if "mathdefault" in text.get_text())  # 10¹


def test_an_axis_says_which_labels_are_left_out():
    few, many = (np.full((1, 1, size, size), 1 / size, np.float32) for size in (7, 97))
    names = [plot_attention_maps(None, [maps]).get_supxlabel() for maps in (few, many)]
    assert names == ["Key", "Key (one label in 2)"]
