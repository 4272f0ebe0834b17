"""What the page computes: attention maps in their precision, the logit lens, alike examples, the tasks' examples."""

from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from inspection_pages import CHROMIUM, content_of, opened, unpacked

from transformer_jax import Cifar100Config, InputError, ReverseConfig, TrainerModule, TrainingConfig, capture, load_run
from transformer_jax.inspection import logit_lens
from transformer_jax.inspection.page.page import inspection_page, passes_of
from transformer_jax.inspection.page.passes import neighbours
from transformer_jax.inspection.page.view import packed_map
from transformer_jax.tasks import AnomalyTrainer, ReverseTrainer
from transformer_jax.tasks.anomaly.examples import read_images
from transformer_jax.training import InspectedExample
from transformer_jax.training.inspected_example import Answer, AnswerPart, answer_by_position, numbers_in

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (on Debian: apt-get install chromium)")


def test_weights_are_stored_to_four_decimals():
    weights = np.random.default_rng(0).dirichlet(np.ones(101), (2, 37)).astype(np.float32)
    stored = np.frombuffer(unpacked(packed_map(weights)), "<u2").reshape(weights.shape) / 10_000
    np.testing.assert_allclose(stored, weights, rtol=0, atol=5.001e-5)
    for other in (weights - 0.5, 100 * weights):  # of an attention of one's own; 16 bits would wrap
        with pytest.raises(InputError, match="a page shows those of 0 … 6.5"):
            packed_map(other)


@pytest.mark.slow
def test_an_example_has_its_logit_lens_and_the_others_of_the_largest_cosines():
    trainer = load_run("digits")
    compared = trainer.test_examples(range(23))
    passes = passes_of(trainer, compared[0].inputs)
    inputs = np.concatenate([example.inputs for example in compared])
    of_model = trainer.model, trainer.variables, *trainer.model_inputs(inputs)
    np.testing.assert_allclose(
        passes.of(compared[5]).lens, logit_lens(*of_model)[:, 5], rtol=0, atol=2e-5
    )  # of about 10
    (found,) = neighbours(passes, [compared[5]], compared)
    name = "encoder.layers.1.output"
    means = np.asarray(capture(*of_model, names=[name])[1][name]).mean(1)
    cosines = means @ means[5] / np.linalg.norm(means, axis=1) / np.linalg.norm(means[5])
    order = [index for index in np.argsort(-cosines) if index != 5][:5]
    assert [neighbour.example.title for neighbour in found] == [f"test set {index}" for index in order]
    np.testing.assert_allclose([neighbour.cosine for neighbour in found], cosines[order], rtol=0, atol=1e-6)
    assert found[0].answer.text == compared[order[0]].answer(trainer.forward(inputs)[order[0]]).text


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
    content = content_of(inspection_page(trainer, [example]))
    assert (content["images"]["height"], content["images"]["number"]) == (8, 5)
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


def plain_trainer() -> PlainTrainer:
    trainer = PlainTrainer(TrainingConfig())
    trainer.params = trainer.initial_params(jax.random.key(0), np.zeros((1, 5), np.int32))
    return trainer


@pytest.mark.slow
def test_a_task_that_says_nothing_has_numbers_as_labels():
    trainer, inputs = plain_trainer(), np.array([[0, 2, 1, 1, 0], [1, 1, 1, 2, 2]], np.int32)
    page = shown(trainer, inputs)
    content = content_of(page, 1)
    assert content["title"] == "1 1 1 2 2"
    assert content["kinds"][0]["queries"] == content["kinds"][0]["keys"] == ["1", "1", "1", "2", "2"]
    logits = trainer.forward(inputs)
    assert page.answers[1].text == " ".join(map(str, logits[1].argmax(-1)))
    probabilities = np.asarray(jax.nn.softmax(logits[1])).max(-1)
    np.testing.assert_allclose([part.probability for part in page.answers[1].parts], probabilities, rtol=1e-6)
    assert content["neighbours"] == []


@pytest.mark.parametrize(
    ("output", "text"),
    [(np.array([[0.0, 3.0], [2.0, 1.0]]), "1 0"), (np.array([0.5, 0.1]), "0"), (np.ones((2, 1)), "1 1")],
)
def test_an_answer_is_the_class_of_the_largest_logit_or_the_number_itself(output, text):
    assert answer_by_position(output.astype(np.float32)).text == text


@pytest.mark.slow
def test_a_tasks_own_answer_may_hold_numpys_numbers():
    probability = np.float32(0.5)
    answer = Answer("yes", probability, [AnswerPart("0", "yes", probability), AnswerPart("1", "3", None)])
    example = InspectedExample(inputs=np.arange(16)[None] % 10, answer=lambda _: answer)
    content = content_of(inspection_page(load_run("reverse"), [example]))
    assert content["answer"] == {"text": "yes", "probability": 0.5, "parts": [["yes", 0.5], ["3", None]]}


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
        (lambda: load_run("reverse").read_examples(["3", "x"]), "inputs holds 'x'; it must hold whole numbers"),
        (lambda: load_run("digits").read_examples(["a.png"]), "a set has at least 2"),
        (lambda: AnomalyTrainer(Cifar100Config(data_dir=Path("none"))).test_examples([0]), "none holds no features of"),
        (lambda: shown(plain_trainer(), 3), "inputs is 3; it must be a batch"),
        (lambda: inspection_page(load_run("reverse"), []), "there must be at least one example"),
    ],
)
def test_wrong_inputs_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()


@needs_chromium
@pytest.mark.slow
def test_texts_stay_texts_whatever_they_hold(tmp_path):
    hostile = "</script><script>document.title='taken'</script><img src=http://x.invalid/>&amp;"
    numbers = np.zeros((1, 5), np.int32)
    example = InspectedExample(inputs=numbers, labels=[hostile] * 5, title=hostile, expected=hostile)
    made = inspection_page(plain_trainer(), [example], title=hostile)
    made.save(tmp_path / "inspection.html")
    with opened(tmp_path / "inspection.html") as (page, problems, requests):
        assert page.title() == page.locator("h1").inner_text() == hostile
        assert page.locator("#example option").inner_text() == hostile
        assert hostile in page.locator("#attention .value").inner_text()
        assert (problems, len(requests)) == ([], 1)
