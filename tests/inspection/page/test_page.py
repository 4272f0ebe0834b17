"""What the page computes: attention maps in their precision, the logit lens, alike examples, the tasks' examples."""

from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from inspection_pages import choose_example, content_of, opened, parts

from transformer_jax import Cifar100Config, InputError, ReverseConfig, TrainerModule, TrainingConfig, load_run
from transformer_jax.inspection import Page, inspection_page, logit_lens
from transformer_jax.tasks import AnomalyTrainer, ReverseTrainer
from transformer_jax.tasks.anomaly.images import read_images
from transformer_jax.training import InspectedExample
from transformer_jax.training.inspected_example import Answer, AnswerPart, answer_by_position, numbers_in


@pytest.mark.slow
def test_an_example_has_its_logit_lens_and_its_nearest_neighbours():
    trainer = load_run("digits")
    compared = trainer.test_examples(range(256))
    content = content_of(inspection_page(trainer, compared[5:6]))
    inputs = np.concatenate([example.inputs for example in compared])
    lens = np.asarray(trainer.inspected.apply(logit_lens, *trainer.model_inputs(compared[5].inputs)))[:, 0]
    said = [compared[5].answer(output) for output in lens]
    assert [layer["answer"]["text"] for layer in content["lens"]] == [answer.text for answer in said]
    found = [layer["answer"]["probability"] for layer in content["lens"]]
    np.testing.assert_allclose(found, [answer.probability for answer in said], rtol=1e-4)
    name = "encoder.layers.1.output"
    logits, seen = trainer.inspected.capture(tuple(trainer.model_inputs(inputs)), [name])
    stream = np.asarray(seen[name])
    means = (stream / np.linalg.norm(stream, axis=-1, keepdims=True)).mean(1)
    cosines = means @ means[5] / np.linalg.norm(means, axis=1) / np.linalg.norm(means[5])
    order = [index for index in np.argsort(-cosines) if index != 5][:5]
    near = content["neighbours"]
    assert [each["title"] for each in near] == [f"test set {index}" for index in order]
    np.testing.assert_allclose([each["cosine"] for each in near], cosines[order], rtol=0, atol=1e-6)
    assert near[0]["text"] == compared[order[0]].answer(np.asarray(logits)[order[0]]).text
    assert [(each["number"], each["height"]) for each in (content["images"], near[0]["images"])] == [(10, 8)] * 2


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
    assert example.images.shape == (5, 8, 8)
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
def test_texts_have_the_translation_that_predict_gives(dates):
    trainer, page = dates
    assert [answer.text for answer in page.answers] == trainer.predict([example.title for example in page.examples])
    content = content_of(page, 1)
    assert [kind["name"] for kind in content["kinds"]] == ["encoder", "decoder", "cross"]
    assert content["kinds"][2]["keys"] == [*"samedi 4 f", "é", "·", *"vrier 2017"]
    assert content["kinds"][2]["queries"] == ["start", *"2017-02-04"]
    assert [text for text, _ in content["answer"]["parts"]] == [*"2017-02-04", "end"]
    assert content["unchanged"] == content["answer"]  # found without a search
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


class UntitledTrainer(PlainTrainer):
    """A task whose examples have no titles, as that of docs/inspection.md."""

    def examples(self, inputs):
        return [InspectedExample(inputs=row[None]) for row in inputs]

    def test_examples(self, numbers):
        return self.examples(TESTED[list(numbers)])

    test_set = property(lambda self: TESTED)


TESTED = np.array([[0, 2, 1, 1, 0], [1, 1, 1, 2, 2], [2, 0, 0, 1, 2]], np.int32)


@pytest.mark.slow
def test_examples_without_titles_have_neighbours_but_not_themselves():
    trainer = UntitledTrainer(TrainingConfig())
    trainer.params = trainer.initial_params(jax.random.key(0), TESTED[:1])
    near = content_of(inspection_page(trainer.fitted, trainer.examples(TESTED[1:2])))["neighbours"]
    assert sorted(each["title"] for each in near) == ["test set 0", "test set 2"]


HOSTILE = "</script><script>document.title='taken'</script><img src=http://x.invalid/>&amp;"
ROWS = np.array([[0, 2, 1, 1, 0], [1, 1, 1, 2, 2]], np.int32)
HALF, SMALL = np.float32([0.5, 1e-6])  # NumPy's numbers, as a task's own answer may hold them
OWN = Answer("yes", SMALL, [AnswerPart("0", "yes", HALF), AnswerPart("1", "3", None)])


@pytest.fixture(scope="module")
def plain() -> tuple[PlainTrainer, Page]:
    """A trainer and a page on an example with hostile texts, two of numbers, and one with an answer of its own."""
    trainer = PlainTrainer(TrainingConfig())
    trainer.params = trainer.initial_params(jax.random.key(0), ROWS[:1])
    hostile = InspectedExample(inputs=ROWS[:1], labels=[HOSTILE] * 5, title=HOSTILE, expected=HOSTILE)
    own = InspectedExample(inputs=ROWS[:1], title="own", answer=lambda _: OWN)
    return trainer, inspection_page(trainer, [hostile, *trainer.examples(ROWS), own], title=HOSTILE)


@pytest.mark.slow
def test_a_task_without_hooks_has_numbers_as_labels(plain):
    trainer, page = plain
    content = content_of(page, 2)
    assert content["title"] == "1 1 1 2 2"
    assert content["kinds"][0]["queries"] == content["kinds"][0]["keys"] == ["1", "1", "1", "2", "2"]
    (logits,) = trainer.forward(ROWS[1:])
    assert page.answers[2].text == " ".join(map(str, logits.argmax(-1)))
    probabilities = np.asarray(jax.nn.softmax(logits)).max(-1)
    np.testing.assert_allclose([part.probability for part in page.answers[2].parts], probabilities, rtol=1e-6)
    assert content["neighbours"] == []


@pytest.mark.slow
def test_hostile_texts_are_shown_as_text_and_a_task_words_its_answer(browser, plain, tmp_path):
    plain[1].save(tmp_path / "inspection.html")
    with opened(browser, tmp_path / "inspection.html") as (page, problems, requests):
        assert page.title() == page.locator("h1").inner_text() == HOSTILE
        assert page.locator("#example option").first.inner_text() == HOSTILE
        assert HOSTILE in page.locator("#attention .value").inner_text()
        choose_example(page, 3, "own")
        assert page.locator("#said").inner_text() == "yes"  # without a small product of many probabilities
        assert [row[1:] for row in parts(page)] == [["yes", "50.00 %"], ["3", ""]]
        assert (problems, len(requests)) == ([], 1)


def test_an_answer_of_one_number_is_the_number_itself():
    assert answer_by_position(np.ones((2, 1), np.float32)).text == "1 1"


def test_words_are_one_sequence_of_numbers_or_one_each():
    assert numbers_in(["3", "1", "4"]) == numbers_in(["3 1 4"]) == numbers_in(["3,1,4"]) == [[3, 1, 4]]
    assert numbers_in(["3 1 4", "1 5"]) == [[3, 1, 4], [1, 5]]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: inspection_page(ReverseTrainer(ReverseConfig())), "ReverseTask is not trained yet"),
        (lambda: load_run("reverse").read_examples(["3", "x"]), "inputs holds 'x'; it must hold whole numbers"),
        (lambda: load_run("digits").read_examples(["a.png"]), "a set has at least 2"),
        (lambda: AnomalyTrainer(Cifar100Config(data_dir=Path("none"))).test_examples([0]), "none has no features of"),
        (lambda: PlainTrainer(TrainingConfig()).examples(3), "inputs is 3; it must be a batch"),
        (lambda: inspection_page(load_run("reverse"), []), "there must be at least one example"),
    ],
)
def test_wrong_inputs_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        wrong()
