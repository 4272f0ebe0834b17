"""What a person sees who opens the page of each task: from a file, without a network."""

import numpy as np
import pytest
from inspection_pages import CHROMIUM, choose_kind, head_button, hover, opened, parts, shown_map, value
from playwright.sync_api import expect

from transformer_jax import load_run, patch
from transformer_jax.inspection import zero
from transformer_jax.inspection.page.page import inspection_page

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (on Debian: apt-get install chromium)"),
]

NUMBERS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3])
DATES = ["March 3, 2004", "mardi 3 janvier 2017"]


@pytest.fixture(scope="module", params=["reverse", "dates"])
def case(request, tmp_path_factory):
    """The trainer, the examples, the page, the example's number and maps, and a head with a cell of its map."""
    trainer = load_run(request.param)
    inputs, number, kind, layer, head, cell = {
        "reverse": (NUMBERS, 0, "encoder", 0, 0, (2, 13)),
        "dates": (DATES, 1, "cross", 1, 0, (4, 17)),
    }[request.param]
    examples = trainer.examples(inputs)
    page = inspection_page(trainer, examples)
    file = tmp_path_factory.mktemp("page") / "inspection.html"
    page.save(file)
    labelled = trainer.attention(inputs)
    maps = (labelled[number] if isinstance(labelled, list) else labelled).maps
    shown = {"example": examples[number], "answer": page.answers[number], "number": number, "maps": maps}
    return {"trainer": trainer, "file": file, "kind": kind, "layer": layer, "head": head, "cell": cell, **shown}


def choose_example(page, case) -> None:
    page.get_by_label("Example").select_option(index=case["number"])
    expect(page.locator("#given")).to_contain_text(case["example"].title)
    choose_kind(page, case["kind"])


def test_a_head_is_chosen_by_mouse_and_its_weights_are_those_that_numpy_says(case):
    layer, head, (query, key) = case["layer"], case["head"], case["cell"]
    weights = case["maps"][case["kind"]][layer][head]  # [T S]
    with opened(case["file"]) as (page, problems, requests, _):
        choose_example(page, case)
        head_button(page, layer, head).click()
        shown_map(page, case["kind"], layer, head)
        hover(page, query, key, *weights.shape)
        assert float(value(page)) == pytest.approx(weights[query, key], abs=5.2e-5)  # four decimals are shown
        strongest = np.unravel_index(weights.argmax(), weights.shape)
        hover(page, *map(int, strongest), *weights.shape)
        assert float(value(page)) == pytest.approx(weights.max(), abs=5.2e-5)  # four decimals are shown
        labels = case["example"].labels_of("encoder", weights.shape[1])
        text = page.locator("#value").inner_text()
        assert f"→ key {strongest[1]} “{'␣' if (label := labels[strongest[1]]) == ' ' else label}”" in text
        assert (problems, requests) == ([], [case["file"].as_uri()])


def test_layers_heads_and_cells_are_chosen_by_keyboard(case):
    kind, layers = case["kind"], case["maps"][case["kind"]]
    with opened(case["file"]) as (page, problems, _, _):
        choose_example(page, case)
        page.locator("#kind").focus()
        page.keyboard.press("Tab")  # to the chosen head, the only one in the order of the tabulator
        expect(head_button(page, 0, 0)).to_be_focused()
        for _ in range(case["layer"]):
            page.keyboard.press("ArrowDown")
        for _ in range(case["head"]):
            page.keyboard.press("ArrowRight")
        shown_map(page, kind, case["layer"], case["head"])
        expect(head_button(page, case["layer"], case["head"])).to_have_attribute("aria-pressed", "true")
        for _ in range(2):
            page.keyboard.press("Tab")  # past the button that zeroes, to the map
        expect(page.locator("#map")).to_be_focused()
        query, key = case["cell"]
        for name in ["Home", *["PageUp"] * 9, *["ArrowDown"] * query, *["ArrowRight"] * key]:
            page.keyboard.press(name)
        expect(page.locator("#value")).to_contain_text(f"query {query} ")
        assert float(value(page)) == pytest.approx(layers[case["layer"]][case["head"]][query, key], abs=5.2e-5)
        for name in ["End", *["PageDown"] * 9]:
            page.keyboard.press(name)
        assert float(value(page)) == pytest.approx(layers[case["layer"]][case["head"]][-1, -1], abs=5.2e-5)
        assert problems == []


def test_a_zeroed_head_gives_the_answer_that_patch_gives(case):
    trainer, example, layer, head = case["trainer"], case["example"], case["layer"], case["head"]
    stack = "encoder" if case["kind"] == "encoder" else "decoder"
    attention = "cross_attention" if case["kind"] == "cross" else "attention"
    patches = {f"{stack}.layers.{layer}.{attention}.head_outputs": zero(heads=head)}
    arguments = trainer.model_inputs(example.inputs)
    expected = example.answer(np.asarray(patch(trainer.model, trainer.variables, *arguments, patches=patches))[0])
    with opened(case["file"]) as (page, problems, _, _):
        choose_example(page, case)
        head_button(page, layer, head).click()
        assert [row[1] for row in parts(page)] == [part.text for part in case["answer"].parts]
        page.get_by_role("button", name="Zero this head").press("Enter")
        expect(page.locator("#said")).to_contain_text(f"with head {head} of {case['kind']} layer {layer} zeroed")
        expect(page.locator("#said")).to_contain_text(expected.text)
        for row, part in zip(parts(page), expected.parts, strict=True):
            assert row[3] == part.text
            # Two decimals of a per cent are shown, and two programs add in another order.
            assert float(row[4].removesuffix(" %")) / 100 == pytest.approx(part.probability, abs=6e-5)
        changed = page.locator("#parts tr.changed")
        expect(changed).to_have_count(
            sum(a.text != b.text for a, b in zip(expected.parts, case["answer"].parts, strict=True))
        )
        assert problems == []
