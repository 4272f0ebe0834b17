"""What a person sees who opens the page of each task: from a file, without a network."""

import itertools
import re

import jax
import numpy as np
import pytest
from inspection_pages import (
    choose_example,
    choose_kind,
    choose_tab,
    content_of,
    empty_page,
    head_button,
    hover,
    opened,
    parts,
    shown_map,
    value,
)
from playwright.sync_api import expect

from transformer_jax.inspection import (
    AttributionGraph,
    View,
    ablate_heads,
    graph_page,
    induction_circuit,
    inspect_model,
    show_grid,
    show_heads,
    show_tokens,
    zero,
)
from transformer_jax.inspection.features.graph import nodes_of

pytestmark = pytest.mark.slow

LAYER, HEAD = 1, 0  # of the cross-attention


@pytest.fixture(scope="module")
def file(dates, tmp_path_factory):
    """That of the page on dates."""
    file = tmp_path_factory.mktemp("page") / "inspection.html"
    dates[1].save(file)
    return file


def choose_head(page) -> None:
    """Of the second date."""
    choose_example(page, 1, "samedi")
    choose_kind(page, "cross")
    head_button(page, LAYER, HEAD).click()
    shown_map(page, "cross", LAYER, HEAD)


def test_a_head_is_chosen_by_mouse_and_its_weights_are_those_that_numpy_says(browser, dates, file):
    trainer, made = dates
    weights = trainer.maps_of(made.examples[1]).maps["cross"][LAYER][HEAD]  # [T S]
    with opened(browser, file) as (page, problems, requests):
        choose_head(page)
        hover(page, 4, 17, *weights.shape)
        assert float(value(page)) == pytest.approx(weights[4, 17], abs=5.2e-5)  # four decimals are shown
        strongest = np.unravel_index(weights.argmax(), weights.shape)
        hover(page, *map(int, strongest), *weights.shape)
        assert float(value(page)) == pytest.approx(weights.max(), abs=5.2e-5)  # four decimals are shown
        labels = made.examples[1].labels_of("encoder", weights.shape[1])
        text = page.locator("#attention .value").inner_text()
        assert f"→ key {strongest[1]} “{'␣' if (label := labels[strongest[1]]) == ' ' else label}”" in text
        assert (problems, requests) == ([], [file.as_uri()])


def test_a_zeroed_head_gives_the_answer_that_patch_gives(browser, dates, file):
    trainer, made = dates
    example, answer = made.examples[1], made.answers[1]
    patches = {f"decoder.layers.{LAYER}.cross_attention.head_outputs": zero(heads=HEAD)}
    output = trainer.inspected.patch(tuple(trainer.model_inputs(example.inputs)), patches)
    expected = example.answer(np.asarray(output)[0])
    with opened(browser, file) as (page, problems, _):
        choose_head(page)
        assert [row[1] for row in parts(page)] == [part.text for part in answer.parts]
        page.get_by_role("button", name="Zero this head").press("Enter")
        expect(page.locator("#said")).to_contain_text(f"with head {HEAD} of cross layer {LAYER} zeroed")
        expect(page.locator("#said")).to_contain_text(expected.text)
        for row, part in zip(parts(page), expected.parts, strict=True):
            assert row[3] == part.text
            # Two decimals of a per cent are shown, and two programs add in another order.
            assert float(row[4].removesuffix(" %")) / 100 == pytest.approx(part.probability, abs=6e-5)
        changed = page.locator("#parts tr.changed")
        expect(changed).to_have_count(sum(a.text != b.text for a, b in zip(expected.parts, answer.parts, strict=True)))
        assert problems == []


CIRCUIT = induction_circuit(max_length=41, num_tokens=97)
TOKENS = np.concatenate([[0], np.tile(np.random.default_rng(0).permutation(np.arange(1, 98))[:20], 2)])[None, :40]


@pytest.fixture(scope="module")
def induction(tmp_path_factory):
    """The file of a page on 40 tokens of which the last 20 repeat those before."""
    file = tmp_path_factory.mktemp("page") / "induction.html"
    corrupted, mask = CIRCUIT.inputs(TOKENS)
    corrupted[0, 19] = corrupted[0, 0]  # the last token of the first half, which only its repetition predicts
    page = inspect_model(
        CIRCUIT.model,
        CIRCUIT.variables,
        CIRCUIT.inputs(TOKENS),
        TOKENS[0].tolist(),
        corrupted=(corrupted, mask),
        features={"encoder.layers.0.input": lambda _: jax.nn.one_hot(TOKENS, 98)},
    )
    page.save(file)
    return file


def test_the_heads_that_work_are_coloured_and_the_first_map_is_of_the_one_that_matters_most(browser, induction):
    said = CIRCUIT.logits(TOKENS).argmax(-1)
    (without,) = ablate_heads(
        CIRCUIT.model, CIRCUIT.variables, *CIRCUIT.inputs(TOKENS), metric=lambda y: (y.argmax(-1) == said).mean()
    ).values()
    with opened(browser, induction) as (page, problems, _):
        colours = "buttons => buttons.map(b => +b.style.background.match(/\\d+/)[0])"  # red: 247 is none, 8 is full
        red = np.reshape(page.locator("#heads button").evaluate_all(colours), without.shape)
        works = CIRCUIT.working_heads
        np.testing.assert_array_equal(without < 0.9, works)  # the others change nothing
        assert red[~works].min() > 240
        assert red[works].min() == 8  # the full colour
        assert red[works].max() < 150
        layer, head = np.unravel_index(red.argmin(), red.shape)
        expect(head_button(page, layer, head)).to_have_attribute("aria-pressed", "true")
        assert problems == []


def test_a_uniform_map_stays_pale(browser, tmp_path):
    show_heads(np.full((1, 40, 40), 1 / 40), list(range(40))).save(tmp_path / "heads.html")
    with opened(browser, tmp_path / "heads.html") as (page, *_):
        pixel = "canvas => canvas.getContext('2d').getImageData(0, 39, 1, 1).data[0]"
        assert page.locator(".map canvas").evaluate(pixel) == pytest.approx(247 - (247 - 8) / 8, abs=1)


def assert_whole(page, *selectors):
    """Nothing of the document or of these elements is cut or beside the window."""
    for selector in ("html", *selectors):
        found, window = page.locator(selector).evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert found <= window, selector


def assert_labels_stand_apart(page, inside):
    for axis, side, direction in (("columns", "x", "width"), ("rows", "y", "height")):
        texts = """ticks => ticks.map(tick => {
          const range = document.createRange(); range.selectNodeContents(tick);
          const {x, y, width, height} = range.getBoundingClientRect(); return {x, y, width, height}; })"""
        boxes = page.locator(f"{inside} .{axis} .tick").evaluate_all(texts)
        assert boxes
        for before, after in itertools.pairwise(boxes):
            assert before[side] + before[direction] <= after[side] + 0.5


@pytest.mark.parametrize("width", [360, 1100, 3840])
def test_at_every_width_the_maps_are_whole_and_labels_stand_apart(browser, induction, width):
    height = width * 9 // 16 if width > 1000 else 800
    with opened(browser, induction, width=width, height=height) as (page, problems, *_):
        assert_whole(page, "#attention .map-box", ".table-box")
        assert_labels_stand_apart(page, "#attention")
        assert page.locator("#attention .map canvas").bounding_box()["width"] >= min(0.7 * width, 560)
        page.get_by_role("button", name="Lines").click()
        assert_whole(page, "#attention .map-box")
        for tab in ("Lens", "Attribution", "Patching", "Features"):
            choose_tab(page, tab)
            assert_whole(page)
        choose_tab(page, "Patching")
        assert_whole(page, "#patching .map-box")
        assert_labels_stand_apart(page, "#patching")
        choose_tab(page, "Attribution")
        assert_whole(page, "#attribution .map-box", "#attribution-heads .map-box")
        assert_labels_stand_apart(page, "#attribution")
        assert problems == []


def test_tabs_are_chosen_by_arrow_keys_and_their_numbers_read_by_keys(browser, induction):
    (tokens,) = TOKENS
    with opened(browser, induction) as (page, problems, *_):
        choose_tab(page, "Lens")
        assert page.locator("#lens tr").first.locator("th").all_inner_texts() == ["", *map(str, tokens)]
        choose_tab(page, "Heads")
        for name in ("Lens", "Attribution", "Patching", "Features", "Heads", "Lens", "Attribution"):
            page.keyboard.press("ArrowRight")
            expect(page.get_by_role("tab", selected=True)).to_have_text(name)
            expect(page.get_by_role("tab", name=name)).to_be_focused()
            expect(page.get_by_role("tabpanel", name=name)).to_be_visible()
            expect(page.get_by_role("tabpanel")).to_have_count(1)
        found = content_of(View(induction.read_text(encoding="utf-8")))
        page.keyboard.press("Tab")
        expect(page.locator("#attribution .map")).to_be_focused()
        for key in ("PageUp", "Home", "ArrowDown", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        row, value = found["attribution"]["rows"][1], found["attribution"]["values"][1][2]
        text = page.locator("#attribution .value").inner_text()
        assert text.startswith(f"{row}, position 2 “{tokens[2]}”: ")
        assert float(text.rpartition(" ")[2]) == pytest.approx(value, rel=1e-3)
        expect(page.locator("#attribution-place")).to_have_text(f"Heads at 2 “{tokens[2]}”")
        heads = page.locator("#attribution-heads .value").inner_text()
        assert float(heads.rpartition(" ")[2]) == pytest.approx(
            found["attribution"]["heads"]["values"][0][0][2], rel=1e-3
        )
        page.get_by_role("tab", name="Attribution").focus()
        page.keyboard.press("End")
        most = page.locator("#features button[aria-pressed=true]")
        expect(most).to_have_text(f"{tokens[0]}: 1.000")  # the feature of a token is that token
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        expect(page.locator(".tokens")).to_be_focused()
        page.keyboard.press("ArrowRight")
        expect(page.locator("#feature-text .value")).to_have_text(f"feature {tokens[0]}, 1 “{tokens[1]}”: 0.000")
        assert problems == []


def test_the_lines_of_a_query_are_the_weights_of_its_map(browser, induction):
    with opened(browser, induction) as (page, problems, *_):
        page.locator("#attention .map").focus()
        page.keyboard.press("ArrowDown")
        before = page.locator("#attention .value").inner_text()
        page.get_by_role("button", name="Lines").press("Enter")
        expect(page.locator("#attention .value")).to_have_text(before)
        expect(page.locator("#attention .rows .tick")).to_have_count(40)
        box = page.locator("#attention .map canvas").bounding_box()
        page.mouse.move(box["x"] + 0.1 * box["width"], box["y"] + 20 * 7.5)
        page.mouse.move(box["x"] + 0.9 * box["width"], box["y"] + 20 * 3.5)
        expect(page.locator("#attention .value")).to_contain_text(re.compile("^query 7 .*key 3 "))
        expect(page.locator("#attention .rows .pointed")).to_have_count(1)
        assert problems == []


@pytest.mark.parametrize("width", [360, 3840])
def test_views_of_arrays_are_whole_and_read_by_keys(browser, tmp_path, width):
    rng = np.random.default_rng(0)
    tokens = [f"token{number}" for number in range(40)]
    weights, values = rng.dirichlet(np.ones(40), (12, 12, 40)), rng.normal(size=(2, 40))
    show_heads(weights, tokens).save(tmp_path / "heads.html")
    show_tokens(tokens, values, ["loss", "gain"]).save(tmp_path / "tokens.html")
    show_grid(values, tokens).save(tmp_path / "grid.html")
    with opened(browser, tmp_path / "heads.html", width=width) as (page, problems, requests):
        assert_whole(page, ".table-box", ".map-box")
        assert_labels_stand_apart(page, "main")
        page.keyboard.press("Tab")
        for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
            page.keyboard.press(key)
        expect(head_button(page, 1, 2)).to_be_focused()
        expect(page.get_by_role("application", name="Attention map of layer 1, head 2")).to_be_visible()
        assert float(page.locator(".value").inner_text().rpartition(" ")[2]) == round(weights[1, 2, 0, 0], 4)
        page.get_by_role("button", name="Lines").click()
        assert_whole(page, ".table-box", ".map-box")
        assert (problems, len(requests)) == ([], 1)
    for name, line in (("tokens", "gain, 3"), ("grid", "row 1, column 3")):
        with opened(browser, tmp_path / f"{name}.html", width=width) as (page, problems, *_):
            assert_whole(page, *([".map-box"] if name == "grid" else []))
            page.keyboard.press("Tab")
            for key in ("ArrowDown", "Home", *["ArrowRight"] * 3):
                page.keyboard.press(key)
            text, _, number = page.locator(".value").inner_text().rpartition(": ")
            assert (text, float(number)) == (f"{line} “token3”", pytest.approx(values[1, 3], rel=1e-3))
            assert problems == []


def test_values_beyond_the_colours_are_named_and_the_others_told_apart(browser, tmp_path):
    values = np.random.default_rng(0).uniform(1, 2, size=(5, 7))
    values[1:, 0] = [-24758, 24000, 23000, 22000]
    show_grid(values, ["<s>", *"abcdef"]).save(tmp_path / "grid.html")
    show_tokens(["Ġthe", *"abcdef"], values[4]).save(tmp_path / "tokens.html")
    with opened(browser, tmp_path / "grid.html") as (page, problems, *_):
        expect(page.locator(".scale")).to_contain_text(
            "another colour. 4 cells are beyond the scale, the largest: row 1, column 0 “<s>”: -24760; "
            "row 2, column 0 “<s>”: 24000; row 3, column 0 “<s>”: 23000."
        )
        pixels = "e => [...e.getContext('2d').getImageData(0, 0, 7, 5).data].filter((_, i) => i % 4 === 0)"
        red = np.reshape(page.locator(".map canvas").evaluate(pixels), (5, 7))
        assert (red[2:, 0] == red.min()).all()  # the end of the scale
        assert len(np.unique(red[:, 1:])) > 10
        assert problems == []
    with opened(browser, tmp_path / "tokens.html") as (page, problems, *_):
        expect(page.locator(".note")).to_contain_text("1 cell is beyond the scale: 0 “ the”: 22000.")
        assert problems == []


def test_a_chosen_node_of_a_graph_lists_its_edges_and_leads_to_the_others(browser, tmp_path):
    nodes = nodes_of(["feature", "error", "token", "logit"], [0, 0, 0, 1], [0, 1, 0, 1], [7, 0, 0, 2], [1.5, 0, 0, 3])
    edges = np.zeros((4, 4))
    edges[0, 2], edges[3, 0], edges[3, 1] = 1.25, 2.5, -0.5
    graph = AttributionGraph(nodes, edges, np.zeros(4), np.array([0, 0, 0, 0.75]))
    graph_page(graph, ["the", "<b>"], {2: "cat"}, features={"0.7": "an animal"}).save(tmp_path / "graph.html")
    with opened(browser, tmp_path / "graph.html") as (page, problems, requests):
        expect(page.locator(".details")).to_contain_text("logit “cat”")
        rows = page.locator(".details tr:visible").all_inner_texts()
        assert rows == [
            "reads from",
            "feature 0.7 at 0 “the”: an animal\t2.500",
            "error of layer 0 at 1 “<b>”\t-0.5000",
        ]
        page.get_by_role("button", name="feature 0.7 at 0 “the”: an animal").first.press("Enter")
        expect(page.locator(".details h2")).to_have_text("feature 0.7 at 0 “the”: an animal")
        expect(page.locator(".details p")).to_have_text("Value 1.500; influence 0.6250.")  # 0.75 · 2.5 / 3
        rows = page.locator(".details tr:visible").all_inner_texts()
        assert rows == ["reads from", "token at 0 “the”\t1.250", "is read by", "logit “cat”\t2.500"]
        page.locator(".details button").first.click()
        expect(page.locator(".details h2")).to_have_text("token at 0 “the”")
        expect(page.locator(".edge.on")).to_have_count(1)
        assert (problems, len(requests)) == ([], 1)


@pytest.mark.parametrize("height", [700, 1400])
def test_the_lens_uses_the_height_of_the_window(browser, induction, height):
    with opened(browser, induction, height=height) as (page, *_):
        choose_tab(page, "Lens")
        box = page.get_by_role("region", name="Logit lens")
        highest = float(box.evaluate("e => getComputedStyle(e).maxHeight").removesuffix("px"))
        assert highest == pytest.approx(max(544, height - box.bounding_box()["y"]), abs=60)


def test_a_frame_in_a_notebook_is_as_high_as_its_view(browser):
    view = show_tokens(["a", "</script>"], [1.0, 2.0])
    with empty_page(browser) as page:
        page.set_content(f"<!doctype html><p>cell</p>{view._repr_html_()}")
        page.frame_locator("iframe").locator("main[aria-busy=false]").wait_for()
        page.wait_for_function("document.querySelector('iframe').clientHeight < 300")
        assert page.locator("iframe").evaluate("f => f.contentDocument.documentElement.scrollHeight <= f.clientHeight")
