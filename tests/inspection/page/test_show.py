"""Views of single arrays: what they hold, and what they refuse."""

import re

import numpy as np
import pytest
from inspection_pages import data_of, unpacked

from transformer_jax import InputError
from transformer_jax.inspection import Page, PatchGrid, View, show_grid, show_heads, show_tokens

TOKENS = ["a", " ", "</script>", 7]
WEIGHTS = np.random.default_rng(0).dirichlet(np.ones(4), (2, 3, 4)).astype(np.float32)  # [L H T S]


@pytest.mark.parametrize("weights", [WEIGHTS, list(WEIGHTS), WEIGHTS[:, None]])
def test_heads_hold_the_weights_of_each_layer_to_four_decimals(weights):
    view = show_heads(weights, TOKENS)
    blobs = re.findall(r'id="blob-\d+">(.*?)</script>', view.text)
    stored = [np.frombuffer(unpacked(blob), "<u2").reshape(3, 4, 4) / 10_000 for blob in blobs]
    np.testing.assert_allclose(stored, WEIGHTS, rtol=0, atol=5.001e-5)
    assert data_of(view)["queries"] == data_of(view)["keys"] == list(map(str, TOKENS))
    data = data_of(show_heads(weights[:1], TOKENS, list("vwxy")))
    assert (data["queries"], data["keys"][0], data["layers"][0]["shape"]) == (list("vwxy"), "a", [3, 4, 4])


def test_tokens_hold_lines_of_values_to_four_digits():
    data = data_of(show_tokens(TOKENS, [[1.23456, -2, 0, np.inf], [1, 2, 3, 4]], ["loss", "position"]))
    assert data["values"] == [[1.235, -2.0, 0.0, None], [1.0, 2.0, 3.0, 4.0]]
    assert (data["names"], data["tokens"]) == (["loss", "position"], list(map(str, TOKENS)))
    assert data_of(show_tokens(TOKENS, np.arange(4)))["values"] == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("by", "titles", "num_rows", "columns", "what"),
    [
        (("layers", "positions"), [""], 2, TOKENS, "position"),
        (("heads", "layers"), [""], 3, None, "head"),
        (("layers", "positions", "heads"), ["head 0", "head 1", "head 2"], 2, TOKENS, "position"),
    ],
)
def test_a_grid_is_layers_by_positions_or_heads(by, titles, num_rows, columns, what):
    shape = {"layers": num_rows, "positions": 4, "heads": 3 if len(by) == 3 else 2}
    values = np.random.default_rng(0).normal(size=[shape[axis] for axis in by])
    data = data_of(show_grid(PatchGrid(values, by), columns))
    assert ([frame["title"] for frame in data["frames"]], data["what"]) == (titles, what)
    assert data["frames"][0]["rows"] == [f"layer {number}" for number in range(num_rows)]
    assert data["frames"][0]["columns"] == list(map(str, columns or range(2)))
    expected = np.moveaxis(values, by.index("layers"), 0)
    np.testing.assert_allclose(data["frames"][0]["values"], expected[..., 0] if len(by) == 3 else expected, rtol=6e-4)


def test_an_array_is_a_grid_too():
    (frame,) = data_of(show_grid([[1.0, np.nan], [2.0, 3.0]]))["frames"]
    assert (frame["rows"], frame["columns"], frame["values"]) == (["row 0", "row 1"], ["0", "1"], [[1, None], [2, 3]])


def test_a_view_is_one_page_in_a_frame_or_a_file(tmp_path):
    view = show_tokens(TOKENS, np.arange(4))
    assert isinstance(view, View)
    assert repr(view) == f"View({len(view.text)} characters of HTML; save(path) writes them)"
    assert view._repr_html_().startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    with pytest.raises(InputError, match="path is .*nowhere.view.html; it must be a file that can be written"):
        view.save(tmp_path / "nowhere" / "view.html")
    assert repr(Page("<p>", [], [])) == "Page(3 characters of HTML; save(path) writes them)"
    view.save(tmp_path / "view.html")
    assert (tmp_path / "view.html").read_text(encoding="utf-8") == view.text
    assert len(view.text) < 50_000  # no plotting library's script
    assert not re.findall(r"https?://|src=|@import|url\(", view.text)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            lambda: show_heads(WEIGHTS, TOKENS[:3]),
            r"weights has a layer of shape \(3, 4, 4\); it must be \[H, 3, 3\]",
        ),
        (lambda: show_heads(100 * WEIGHTS, TOKENS), "a page shows those of 0 … 6.5"),  # 16 bits would wrap
        (lambda: show_tokens(TOKENS, [1.0, 2.0]), r"values has shape \(2,\); it must be \[4\]"),
        (lambda: show_tokens(TOKENS, np.ones((2, 4)), ["one"]), "names has 1 names; there are 2 lines"),
        (lambda: show_grid(np.ones(3)), r"grid has shape \(3,\); it must be a PatchGrid or \[rows, columns\]"),
        (lambda: show_grid(np.ones((2, 3)), TOKENS), "tokens has 4 labels; the grid has 3 columns"),
        (lambda: show_grid(PatchGrid(np.ones((2, 3)), ("layers",))), "metric must return a number"),
    ],
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()
