"""`predict` and `attention` with a user's inputs: one sequence, set or text, or many; and invalid inputs."""

import copy
import datetime
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from flaxmodels.resnet.resnet import URLS
from local_server import UNREACHABLE
from sklearn.datasets import load_digits

from transformer_jax import Cifar100Config, InputError, LanguageModelConfig, TranslationConfig, load_run
from transformer_jax.inspection import inspection_page
from transformer_jax.tasks import AnomalyTrainer, LanguageModelTrainer
from transformer_jax.tasks.byte_text import START, encode, labels, pad
from transformer_jax.tasks.translation.dates import write_date
from transformer_jax.tasks.translation.pairs import PairInputs

NAN = float("nan")
SEQUENCE = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]  # of the length that was trained


@pytest.fixture(scope="module")
def reverser():
    return load_run("reverse")


def test_a_sequence_is_answered_with_a_sequence_and_a_batch_with_a_batch(reverser):
    assert reverser.predict(SEQUENCE).tolist() == SEQUENCE[::-1]
    batch = [SEQUENCE, SEQUENCE[::-1]]
    assert reverser.predict(batch).tolist() == batch[::-1]
    assert reverser.predict(np.array(batch, np.uint8)).tolist() == batch[::-1]


def test_the_maps_of_a_sequence_are_labelled_with_its_numbers_also_in_pictures_of_the_training(reverser):
    maps = reverser.attention(SEQUENCE)
    assert maps.query_labels == maps.key_labels == {"encoder": [*map(str, SEQUENCE)]}
    (layer,) = maps.maps["encoder"]
    assert layer.shape == (1, 16, 16)
    assert layer[0].argmax(-1).tolist() == list(range(16))[::-1]  # the mirrored position
    many = reverser.attention([SEQUENCE, SEQUENCE[::-1]])
    assert [one.key_labels["encoder"] for one in many] == [[*map(str, row)] for row in (SEQUENCE, SEQUENCE[::-1])]
    pictured = reverser.maps_of(reverser.pictured_example(np.array([SEQUENCE, SEQUENCE[::-1]])))
    assert pictured.key_labels == maps.key_labels
    for other in (many[0], pictured):
        np.testing.assert_allclose(other.maps["encoder"][0], layer, atol=1e-6)


@pytest.fixture(scope="module")
def finder():
    return load_run("digits")


@pytest.mark.slow
def test_a_model_that_was_opened_is_tested_on_its_own_sets():
    assert load_run("digits").test()["test"]["accuracy"] >= 0.99


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Two sets of ten digits, [2, 10, 8, 8]: the odd ones are a 1 among 7s at 3, and a 6 among 0s at 8."""
    digits = load_digits()
    sets = [digits.images[digits.target == label][20:30] for label in (7, 0)]
    sets[0][3] = digits.images[digits.target == 1][20]
    sets[1][8] = digits.images[digits.target == 6][20]
    return np.array(sets)


def test_images_of_digits_are_taken_as_they_are_one_set_or_many(finder, images):
    probabilities = finder.predict(images)
    assert (probabilities.shape, probabilities.argmax(-1).tolist()) == ((2, 10), [3, 8])
    np.testing.assert_array_equal(finder.predict(images.astype(np.uint8)), probabilities)
    np.testing.assert_allclose(finder.predict(images[0].tolist()), probabilities[0], atol=1e-6)
    features = (images.reshape(2, 10, 64) / 16).astype(np.float32)
    np.testing.assert_array_equal(finder.predict(features), probabilities)
    np.testing.assert_allclose(finder.predict(features[1]), probabilities[1], atol=1e-6)


def test_the_maps_of_a_set_are_labelled_with_the_positions(finder, images):
    one, other = finder.attention(images)
    assert list(one.key_labels["encoder"]) == list(other.query_labels["encoder"]) == [f"image {n}" for n in range(10)]
    assert [layer.shape for layer in one.maps["encoder"]] == [(4, 10, 10)] * 2
    np.testing.assert_allclose(np.sum(one.maps["encoder"], -1), 1, atol=1e-5)
    alone = finder.attention(images[1])
    np.testing.assert_allclose(alone.maps["encoder"], other.maps["encoder"], atol=1e-5)
    assert not np.allclose(one.maps["encoder"], other.maps["encoder"], atol=1e-2)


def test_images_of_cifar100_need_the_weights_of_the_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(URLS, "resnet34", f"{UNREACHABLE}/w.h5")
    with pytest.raises(InputError, match=r"ResNet-34's ImageNet weights could not be downloaded"):
        AnomalyTrainer(Cifar100Config()).predict(np.zeros((10, 32, 32, 3), np.uint8))


@pytest.fixture(scope="module")
def translator():
    return load_run("dates")


@pytest.mark.slow
def test_a_text_is_answered_with_a_text_and_a_list_with_a_list(translator):
    assert translator.predict("March 3, 2004") == "2004-03-03"
    assert translator.predict(["March 3, 2004", "3. Mai 2017"]) == ["2004-03-03", "2017-05-03"]
    assert translator.predict(("3. Mai 2017",)) == ["2017-05-03"]
    assert translator.predict("16\u00a0января\u202f1931\u202fг.\n") == "1931-01-16"


def test_a_picture_includes_the_start_token_when_it_is_the_padding_token_as_in_t5(translator, monkeypatch):
    target = copy.copy(translator.tokenizers.target)
    target.start = target.pad
    monkeypatch.setattr(translator, "tokenizers", translator.tokenizers._replace(target=target))
    read = np.array([target.pad, *encode("2017-05-03")])
    inputs = PairInputs(pad([encode("5.")], 3), pad([read], 17))
    assert translator.pictured_example(inputs).labels == {"encoder": ["5", "."], "decoder": ["start", *"2017-05-03"]}


@pytest.mark.slow
def test_the_maps_of_a_translation_are_labelled_with_its_characters_also_in_pictures(translator):
    words = write_date(datetime.date(2017, 5, 3), "ru", "long")  # letters of two bytes
    maps = translator.attention(words)
    source, target = labels(encode(words)), ["start", *"2017-05-03"]
    assert source[:6] == ["3", " ", "м", "·", "а", "·"]
    assert maps.query_labels == {"encoder": source, "decoder": target, "cross": target}
    assert maps.key_labels == {"encoder": source, "decoder": target, "cross": source}
    sizes = {"encoder": (len(source),) * 2, "decoder": (11, 11), "cross": (11, len(source))}
    for kind, size in sizes.items():
        assert [layer.shape for layer in maps.maps[kind]] == [(4, *size)] * 2
        np.testing.assert_allclose(np.sum(maps.maps[kind], -1), 1, atol=1e-5)
    assert np.triu(np.abs(maps.maps["decoder"]), 1).max() == 0
    read = np.array([START, *encode("2017-05-03")])
    inputs = PairInputs(pad([encode(words), encode("5.")], 43), pad([read, read[:5]], 17))
    pictured = translator.maps_of(translator.pictured_example(inputs))  # without the padding
    (listed,) = translator.attention([words])
    for again in (listed, pictured):
        assert (again.query_labels, again.key_labels) == (maps.query_labels, maps.key_labels)
        np.testing.assert_allclose(again.maps["cross"], maps.maps["cross"], atol=1e-5)


def test_only_the_white_space_around_the_pairs_of_a_file_is_stripped():
    config = TranslationConfig(data=Path("pairs.tsv"))
    assert config.cleaned(" a\u00a0b \n") == "a\u00a0b"
    assert TranslationConfig().cleaned(" a\u00a0b \n") == "a b"


@pytest.fixture(scope="module")
def writer():
    trainer = LanguageModelTrainer(LanguageModelConfig(model_dim=12, num_heads=3, num_layers=1, seq_len=17))
    trainer.params = {}  # which are not asked
    return trainer


NO_INPUTS = {
    "reverser": [
        ([3, 10], "inputs holds the token id 10; ids may be 0 … 9"),
        ("123", "inputs is '123'; it must be an array of numbers"),
        ([], r"inputs has shape \(0,\); it must be token ids \[T\]"),
        ([[1], [2, 3]], "inputs has rows of different lengths"),
    ],
    "finder": [
        (np.full((10, 8, 8), 255), "inputs holds the pixel 255; pixels of the digits may be 0 … 16"),
        (np.full((10, 64), NAN), "inputs holds a feature that is not finite"),
        (np.ones((10, 7)), r"inputs has shape \(1, 10, 7\); it must be \[B, T, 64\]"),
        ([], r"inputs has shape \(0,\)"),
    ],
    "translator": [
        (3, "inputs is 3; it must be a text or a list of texts"),
        ([3], r"inputs is \[3\]"),
        ([], r"inputs is \[\]"),
        ("", "the text '' has 0 bytes"),
        (["\u200f "], "has 0 bytes; it may have 1 to 256"),
    ],
    "writer": [
        (3, "inputs is 3; it must be a text or a list of texts"),
        (["a", b""], "has 0 bytes; it m"),
        ("\ud800", "surrogates not allowed"),
    ],
}


@pytest.mark.parametrize(
    ("trainer", "inputs", "message"), [(trainer, *row) for trainer, rows in NO_INPUTS.items() for row in rows]
)
@pytest.mark.usefixtures("without_type_checks")
def test_inputs_of_any_other_form_are_an_error(request, trainer, inputs, message):
    opened = request.getfixturevalue(trainer)
    for method in (opened.predict, opened.attention, opened.examples):
        with pytest.raises(InputError, match=message):
            method(inputs)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("reverse", [SEQUENCE], "ReverseTask returned logits .* for row 0"),
        ("digits", np.ones((10, 64), np.float32), "SetAnomalyTask_digits returned probabilities .* for row 0"),
    ],
)
def test_parameters_of_nan_give_no_answer_no_maps_and_no_page(name, given, message):
    opened = load_run(name)
    opened.params = jax.tree.map(lambda leaf: np.full_like(leaf, NAN), opened.params)
    examples = opened.examples(given)
    with pytest.raises(InputError, match=message):
        opened.predict(given)
    title = re.escape(repr(examples[0].title))
    with pytest.raises(InputError, match=f"the output for {title} has numbers that are NaN .* for row 0"):
        opened.answers(examples)
    with pytest.raises(InputError, match="the output for .* has numbers that are NaN .* for row 0"):
        inspection_page(opened, examples)
    with pytest.raises(InputError, match=f"the encoder maps of {title} have weights that are NaN"):
        opened.attention(given)


def test_results_are_one_line_with_their_shapes_and_maps_are_pictures_in_a_notebook(reverser):
    size = sum(leaf.size for leaf in jax.tree.leaves(reverser.params))
    assert repr(reverser) == f"<ReverseTrainer of ReverseTask: {size:,} parameters>"  # of unknown steps
    assert repr(reverser.inspected) == "Inspected(TransformerPredictor)"
    length = reverser.config.seq_len
    maps = reverser.attention(np.arange(length) % 7)
    layers = maps.maps["encoder"]
    shapes = f"{{encoder: {len(layers)} × float32{[*layers[0].shape]}}}"
    assert repr(maps).startswith(f"LabelledMaps(maps={shapes}, query_labels={{encoder: {length} × str}}")
    assert maps._repr_png_().startswith(b"\x89PNG")
    assert len(repr(reverser.examples(np.arange(length) % 7)[0])) < 300
