"""What the page computes: attention maps in their precision, the logit lens, alike examples, the tasks' examples."""

import base64
import gzip
import json
import re
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from inspection_pages import CHROMIUM, head_button, opened, shown_map, value

from transformer_jax import Cifar100Config, InputError, ReverseConfig, TrainerModule, TrainingConfig, capture, load_run
from transformer_jax.inspection import logit_lens
from transformer_jax.inspection.page import stored_maps as storing
from transformer_jax.inspection.page.page import inspection_page
from transformer_jax.inspection.page.passes import InspectedPasses, neighbours
from transformer_jax.inspection.page.stored_maps import stored_maps
from transformer_jax.tasks import AnomalyTrainer, ReverseTrainer
from transformer_jax.tasks.anomaly.examples import read_images
from transformer_jax.training import InspectedExample
from transformer_jax.training.inspected_example import answer_by_position, numbers_in

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (on Debian: apt-get install chromium)")


def unpacked(text: str) -> bytes:
    return gzip.decompress(base64.b64decode(text))


def weights_of(stored: storing.StoredMap) -> np.ndarray:
    """As the script reads them."""
    content = unpacked(stored.text)
    if stored.step == 0:
        return np.frombuffer(content, "<f4").reshape(stored.shape)
    planes = np.frombuffer(content, np.uint8).reshape(-1, *stored.shape).astype(np.int64)
    return sum(plane << 8 * number for number, plane in enumerate(planes)) * stored.step


def content_of(page, number: int = 0) -> dict:
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page.text)[1])
    blob = data["examples"][number]["blob"]
    return json.loads(unpacked(re.search(rf'id="blob-{blob}">(.*?)</script>', page.text)[1]))


def spread_maps(num_layers: int, *shape: int) -> list[np.ndarray]:
    """Rows that are distributed uniformly over all that sum to 1, of which no encoding is short."""
    rng = np.random.default_rng(0)
    return [rng.dirichlet(np.ones(shape[-1]), shape[:-1]).astype(np.float32) for _ in range(num_layers)]


def test_few_weights_are_stored_as_they_are():
    maps = spread_maps(2, 3, 5, 7)
    for stored, weights in zip(stored_maps(maps), maps, strict=True):
        assert stored.step == 0
        np.testing.assert_array_equal(weights_of(stored), weights)


@pytest.mark.parametrize("step", storing.STEPS)
def test_many_weights_are_rounded_to_the_finest_step_that_has_room(monkeypatch, step):
    maps = spread_maps(2, 2, 37, 101)
    monkeypatch.setattr(storing, "MAX_EXACT", 100)
    room = sum(len(storing._stored(weights, step).text) for weights in maps)  # no byte more than it takes
    monkeypatch.setattr(storing, "MAX_BYTES", room)
    for stored, weights in zip(stored_maps(maps), maps, strict=True):
        assert stored.step == step
        assert np.abs(weights_of(stored) - weights).max() <= step / 2 + 1e-7  # float32 of about 0.1
        assert stored.largest == weights.max()


def test_weights_that_find_no_room_have_the_coarsest_step(monkeypatch):
    monkeypatch.setattr(storing, "MAX_EXACT", 100)
    monkeypatch.setattr(storing, "MAX_BYTES", 100)
    assert {stored.step for stored in stored_maps(spread_maps(2, 2, 37, 101))} == {max(storing.STEPS)}


@pytest.mark.slow
def test_the_logit_lens_is_that_of_the_method():
    trainer = load_run("digits")
    example = trainer.test_examples([3])[0]
    lens = InspectedPasses(trainer, example.inputs).of(example).lens
    expected = logit_lens(trainer.model, trainer.variables, *trainer.model_inputs(example.inputs))
    np.testing.assert_allclose(lens, expected[:, 0], rtol=0, atol=2e-5)  # of logits of about 10
    np.testing.assert_allclose(lens[-1], trainer.forward(example.inputs)[0], rtol=0, atol=2e-5)


@pytest.mark.slow
def test_alike_examples_have_the_largest_cosines_and_are_others():
    trainer = load_run("digits")
    compared = trainer.test_examples(range(23))
    passes = InspectedPasses(trainer, compared[0].inputs)
    (found,) = neighbours(passes, [compared[5]], compared)
    inputs = np.concatenate([example.inputs for example in compared])
    name = "encoder.layers.1.output"
    _, captured = capture(trainer.model, trainer.variables, *trainer.model_inputs(inputs), names=[name])
    means = np.asarray(captured[name]).mean(1)
    cosines = means @ means[5] / np.linalg.norm(means, axis=1) / np.linalg.norm(means[5])
    order = [index for index in np.argsort(-cosines) if index != 5][:5]
    assert [neighbour.example.title for neighbour in found] == [f"test set {index}" for index in order]
    np.testing.assert_allclose([neighbour.cosine for neighbour in found], cosines[order], rtol=0, atol=1e-6)
    assert found[0].answer.text == compared[order[0]].answer(trainer.forward(inputs)[order[0]]).text


@pytest.mark.slow
def test_sets_show_their_images_and_the_right_answer():
    trainer = load_run("digits")
    content = content_of(inspection_page(trainer, trainer.read_examples(["17"])))
    assert (content["images"]["height"], content["images"]["number"]) == (8, 10)
    assert content["expected"] == content["answer"]["text"]
    assert sum(probability for _, probability in content["answer"]["parts"]) == pytest.approx(1)
    assert {kind["name"]: len(kind["layers"]) for kind in content["kinds"]} == {"encoder": 2}
    assert content["kinds"][0]["images"]


@pytest.mark.slow
def test_images_in_files_are_digits_whether_ink_is_dark_or_light(tmp_path):
    from PIL import Image
    from sklearn.datasets import load_digits

    pixels = load_digits().images[[0, 1, 10, 20, 30]]
    files = []
    for number, image in enumerate(pixels):
        grey = np.rint(image * 255 / 16).astype(np.uint8).repeat(3, 0).repeat(3, 1)
        files.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(255 - grey if number % 2 else grey).save(files[-1])
    trainer = load_run("digits")
    (example,) = trainer.read_examples(files)
    np.testing.assert_allclose(example.inputs[0], pixels.reshape(5, 64) / 16, rtol=0, atol=1 / 255)
    assert example.answer(trainer.forward(example.inputs)[0]).text == "image 1"  # a one among zeros


def test_images_of_colours_are_resized_and_never_inverted(tmp_path):
    from PIL import Image

    for name, colour in (("light.png", (250, 240, 230)), ("dark.png", (10, 20, 30))):
        Image.new("RGB", (37, 53), colour).save(tmp_path / name)
    pixels = read_images([str(tmp_path / "light.png"), str(tmp_path / "dark.png")], (32, 32, 3))
    assert (pixels.shape, pixels.dtype) == ((2, 32, 32, 3), np.uint8)
    assert np.unique(pixels[0].reshape(-1, 3), axis=0).tolist() == [[250, 240, 230]]
    assert np.unique(pixels[1].reshape(-1, 3), axis=0).tolist() == [[10, 20, 30]]


@pytest.mark.slow
def test_texts_have_the_translation_that_predict_gives():
    trainer = load_run("dates")
    texts = ["March 3, 2004", "2017年1月3日"]
    page = shown(trainer, texts)
    assert [answer.text for answer in page.answers] == trainer.predict(texts)
    content = content_of(page, 1)
    assert [kind["name"] for kind in content["kinds"]] == ["encoder", "decoder", "cross"]
    assert content["kinds"][2]["keys"] == [*"2017", "年", "·", "·", "1", "月", "·", "·", "3", "日", "·", "·"]
    assert content["kinds"][2]["queries"] == ["start", *"2017-01-03"]
    assert [text for text, _ in content["answer"]["parts"]] == [*"2017-01-03", "end"]
    expected = {example.expected for example in trainer.test_examples(range(3))}
    assert expected == {pair.target for pair in trainer.config.test_pairs()[:3]}


class PlainTrainer(TrainerModule):
    """A researcher's own task, which says nothing of examples."""

    name = "PlainTask"
    config_class = TrainingConfig
    model_class = None

    def create_model(self):
        return ReverseTrainer(ReverseConfig(seq_len=5, num_categories=3, model_dim=6, num_heads=2)).model

    def model_inputs(self, inputs):
        return (jax.nn.one_hot(inputs, 3),)

    def loss_function(self, params, batch, key, *, train):
        logits = self.apply(params, batch.inputs, key, train=train)
        return {"loss": (optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets), 1.0)}


class NamedTrainer(PlainTrainer):
    """The same, whose numbers have names."""

    def examples(self, inputs):
        return [InspectedExample(inputs=row[None], labels=["abc"[i] for i in row]) for row in inputs]


class RecurrentTrainer(PlainTrainer):
    """A model without attention."""

    def create_model(self):
        class Recurrent(nn.Module):
            @nn.compact
            def __call__(self, x, *, train=False):
                return nn.Dense(3)(x)

        return Recurrent()


def with_params(kind: type[TrainerModule]) -> TrainerModule:
    trainer = kind(TrainingConfig())
    trainer.params = trainer.initial_params(jax.random.key(0), np.zeros((1, 5), np.int32))
    return trainer


@pytest.mark.slow
def test_a_task_that_says_nothing_has_numbers_as_labels():
    trainer, inputs = with_params(PlainTrainer), np.array([[0, 2, 1, 1, 0], [1, 1, 1, 2, 2]], np.int32)
    page = shown(trainer, inputs)
    content = content_of(page, 1)
    assert content["title"] == "1 1 1 2 2"
    assert content["kinds"][0]["queries"] == content["kinds"][0]["keys"] == ["1", "1", "1", "2", "2"]
    logits = trainer.forward(inputs)
    assert page.answers[1].text == " ".join(map(str, logits[1].argmax(-1)))
    probabilities = np.asarray(jax.nn.softmax(logits[1])).max(-1)
    np.testing.assert_allclose([part.probability for part in page.answers[1].parts], probabilities, rtol=1e-6)
    assert content["neighbours"] == []
    named = content_of(shown(with_params(NamedTrainer), inputs))
    assert named["kinds"][0]["keys"] == ["a", "c", "b", "b", "a"]


@pytest.mark.parametrize(
    ("output", "text"),
    [(np.array([[0.0, 3.0], [2.0, 1.0]]), "1 0"), (np.array([0.5, 0.1]), "0"), (np.ones((2, 1)), "1 1")],
)
def test_an_answer_is_the_class_of_the_largest_logit_or_the_number_itself(output, text):
    assert answer_by_position(output.astype(np.float32)).text == text


def test_words_are_one_sequence_of_numbers_or_one_each():
    assert numbers_in(["3", "1", "4"]) == numbers_in(["3 1 4"]) == numbers_in(["3,1,4"]) == [[3, 1, 4]]
    assert numbers_in(["3 1 4", "1 5"]) == [[3, 1, 4], [1, 5]]


def shown(trainer, inputs):
    return inspection_page(trainer, trainer.examples(inputs))


def untrained() -> TrainerModule:
    return ReverseTrainer(ReverseConfig())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: shown(untrained(), [3, 1]), "ReverseTask is not trained yet"),
        (lambda: shown(load_run("reverse"), [3, 10]), "inputs holds the token id 10"),
        (lambda: load_run("reverse").read_examples(["3", "x"]), "inputs holds 'x'; it must hold whole numbers"),
        (lambda: load_run("digits").read_examples(["359"]), "example 359 is not there.* has 0 … 358"),
        (lambda: load_run("digits").read_examples(["a.png", "b.png"]), "inputs holds a.png; it must be the number of"),
        (lambda: load_run("digits").read_examples(["a.png"]), "a set has at least 2"),
        (lambda: load_run("dates").read_examples(["x" * 300]), "has 300 bytes; it may have 1 to 256"),
        (lambda: shown(with_params(RecurrentTrainer), np.zeros((1, 5), np.int32)), "has no attention of this"),
        (lambda: inspection_page(with_params(PlainTrainer)), "PlainTrainer has no load_data, and so no examples"),
        (lambda: AnomalyTrainer(Cifar100Config(data_dir=Path("none"))).test_examples([0]), "none holds no features of"),
        (lambda: shown(with_params(PlainTrainer), 3), "inputs is 3; it must be a batch"),
        (lambda: inspection_page(load_run("reverse"), []), "there must be at least one example"),
    ],
)
def test_wrong_inputs_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()


@needs_chromium
@pytest.mark.slow
def test_texts_stay_texts_whatever_they_hold(tmp_path):
    trainer = with_params(PlainTrainer)
    hostile = "</script><script>document.title='taken'</script><img src=http://x.invalid/>&amp;"
    numbers = np.zeros((1, 5), np.int32)
    example = InspectedExample(inputs=numbers, labels=[hostile] * 5, title=hostile, expected=hostile)
    inspection_page(trainer, [example], title=hostile).save(tmp_path / "inspection.html")
    with opened(tmp_path / "inspection.html") as (page, problems, requests, _):
        assert page.title() == page.locator("h1").inner_text() == hostile
        assert page.locator("#example option").inner_text() == hostile
        assert hostile in page.locator("#value").inner_text()
        assert (problems, len(requests)) == ([], 1)


@needs_chromium
@pytest.mark.slow
def test_a_notebook_shows_the_page_in_a_frame(tmp_path):
    made = shown(with_params(PlainTrainer), np.array([[0, 2, 1, 1, 0]], np.int32))
    made.save(tmp_path / "page.html")
    with opened(tmp_path / "page.html") as (page, problems, _, _):
        page.set_content(f"<!doctype html><p>cell</p>{made._repr_html_()}")
        frame = page.frame_locator("iframe")
        text = frame.locator("#value")
        text.wait_for()
        assert re.fullmatch(r"query 0 “0” → key 0 “0”: 0\.\d{5}", text.inner_text())
        assert problems == []


@needs_chromium
@pytest.mark.slow
def test_a_page_of_512_tokens_has_less_than_10_megabytes_and_says_its_precision(tmp_path):
    from inspection_page import long_page

    page = long_page(512, factor=4.0)
    assert len(page.text.encode()) < 10_000_000
    page.save(tmp_path / "inspection.html")
    content = content_of(page)
    assert [len(layer["ablated"]) for layer in content["kinds"][0]["layers"]] == [8] * 6
    of_map = content["kinds"][0]["layers"][5]["map"]
    text = re.search(rf'id="blob-{of_map["blob"]}">(.*?)</script>', page.text)[1]
    weights = weights_of(storing.StoredMap(text, tuple(of_map["shape"]), of_map["step"], of_map["largest"]))
    with opened(tmp_path / "inspection.html", height=1000) as (browser, problems, _, _):
        head_button(browser, 5, 3).click()
        shown_map(browser, "encoder", 5, 3)
        browser.locator("#map").focus()
        for name in ["Home", "ArrowDown", "End"]:
            browser.keyboard.press(name)
        assert float(value(browser)) == pytest.approx(weights[3, 1, 511], abs=1e-9)
        assert f"(± {of_map['step'] / 2:g})" in browser.locator("#value").inner_text()
        assert problems == []
