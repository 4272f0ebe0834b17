"""The language-model task: what it learns, how it scores bytes and continues texts, and the files of its runs."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from commands import call
from compiled_models import compiled, drawn
from finished_runs import LANGUAGE_MODEL, finished_run

from transformer_jax import InputError, LanguageModelConfig, load_run, train_language_model
from transformer_jax.errors import visible
from transformer_jax.inspection.__main__ import text_of
from transformer_jax.inspection.page.page import inspection_page
from transformer_jax.tasks import LanguageModelTrainer
from transformer_jax.tasks.language_model.task import language_model_data
from transformer_jax.tasks.text_examples import text_examples
from transformer_jax.tasks.tokenization import Tokenizer

SENTENCE = b"The quick brown fox jumps over the lazy dog. "
TINY = {"model_dim": 16, "num_heads": 2, "num_layers": 1, "dim_feedforward": 32, "seq_len": 16, "batch_size": 16}
SHORT = {"max_epochs": 2, "train_size": 160, "warmup": 3, "eval_every": 1, "lr": 1e-2, "max_new": 23, "quiet": True}
WINDOW, NEW = 16, 4


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A file in which 45 bytes repeat."""
    path = tmp_path_factory.mktemp("text") / "fox.txt"
    path.write_bytes(SENTENCE * 40)
    return path


@pytest.fixture(scope="module")
def trainer() -> LanguageModelTrainer:
    """Untrained trainer with random parameters, which treat all bytes differently."""
    trainer = LanguageModelTrainer(LanguageModelConfig(**TINY))
    trainer.params = drawn(trainer.model, np.zeros((1, WINDOW), int), scale=1.0)["params"]
    return trainer


def log_probs(trainer: LanguageModelTrainer, given: bytes) -> np.ndarray:
    """log₂ probability of each byte after `given`; no position sees the padding after it."""
    ids = np.frombuffer(given.ljust(WINDOW), np.uint8)[None].astype(np.int32)
    logits = np.asarray(compiled(trainer.model)({"params": trainer.params}, ids))[0, len(given) - 1].astype(float)
    return (logits - np.logaddexp.reduce(logits)) / np.log(2)


def test_bits_per_byte_are_those_of_each_byte_after_its_context(trainer, text):
    """A window of 16 bytes scores 5: each byte has the 12 to 16 bytes before it as context, fewer at the start."""
    params = trainer.params
    trainer = LanguageModelTrainer(LanguageModelConfig(**TINY, stride=5, data=text, num_devices=1))
    trainer.params = params
    data = language_model_data(trainer.config)
    test = b"\n" + data.text.test.tobytes()
    bits = []
    for number in range(1, len(test)):
        window = max(0, -((WINDOW - number) // 5))  # which scores this byte
        start = min(5 * window, len(test) - 1 - WINDOW)
        bits.append(-log_probs(trainer, test[start:number])[test[number]])
    metrics = trainer.evaluate(data.test_loader)
    assert len(bits) == len(data.text.test) == 90
    assert metrics["bits_per_byte"] == pytest.approx(np.mean(bits), rel=1e-5)
    assert metrics["loss"] == pytest.approx(np.mean(bits) * np.log(2), rel=1e-5)


@pytest.mark.parametrize("length", [1, 11, 12, 13, 40])
def test_a_text_is_continued_as_the_full_pass_would(trainer, length):
    """A quarter of a window is drawn at a time, after the last three quarters of the text so far."""
    whole = text = (SENTENCE * 2)[:length]
    for _ in range(3):
        given = whole[-(WINDOW - NEW) :]
        for _ in range(NEW):
            byte = bytes([int(log_probs(trainer, given).argmax())])
            given, whole = given + byte, whole + byte
    assert trainer.predict(text, max_new=10, top_k=1) == whole[length : length + 10]


def test_draws_are_a_function_of_seed_and_place(trainer):
    texts = ["The", "The"]
    first, second = trainer.predict(texts, max_new=23, temperature=3.0)
    assert first != second
    assert trainer.predict("The", max_new=23, temperature=3.0) == first
    assert trainer.predict("The", max_new=23, temperature=3.0, seed=1) != first
    assert trainer.predict(b"The", max_new=23, temperature=3.0).decode(errors="replace") == first


def test_maps_are_labelled_with_the_texts_characters_also_in_pictures_of_the_training(trainer):
    maps = trainer.attention("a é")
    assert maps.query_labels == maps.key_labels == {"decoder": ["a", " ", "é", "·"]}
    (layer,) = maps.maps["decoder"]
    assert layer.shape == (2, 4, 4)
    assert not np.triu(layer, 1).any()
    np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
    many = trainer.attention(["a é", b"\xff"])
    np.testing.assert_allclose(many[0].maps["decoder"][0], layer, atol=1e-6)
    inputs = np.frombuffer("a éfox".encode() * 2, np.uint8).astype(np.int32).reshape(2, 7)
    pictured, expected = trainer.maps_of(trainer.pictured_example(inputs)), trainer.attention("a éfox")
    assert pictured.key_labels == expected.key_labels
    np.testing.assert_allclose(pictured.maps["decoder"], expected.maps["decoder"], atol=1e-6)
    assert many[1].key_labels == {"decoder": ["FF"]}


def test_examples_are_texts_with_the_byte_that_is_expected_after_each(trainer):
    """They are padded to one shape, which does not change the answers."""
    short, long = trainer.read_examples(["a é", "fox\nfox"])
    assert short.labels == ["a", " ", "é", "·"]
    assert (short.title, short.expected, long.title) == ("a é", None, "fox\\nfox")
    assert long.labels == ["f", "o", "x", "\\n", "f", "o", "x"]
    for example, text in ((short, "a é".encode()), (long, b"fox\nfox")):
        assert example.inputs.shape == (1, 7)
        answer = example.answer(trainer.forward(example.inputs)[0])
        rows = np.array([log_probs(trainer, text[: end + 1]) for end in range(len(text))])
        assert answer.text == visible(bytes(rows.argmax(-1).tolist()).decode(errors="replace"))
        assert [part.place for part in answer.parts] == example.labels
        np.testing.assert_allclose([part.probability for part in answer.parts], 2 ** rows.max(-1), rtol=1e-4)


def test_shorter_texts_than_in_training_get_no_warning_since_the_model_is_causal(trainer, monkeypatch):
    monkeypatch.setattr(trainer, "trained_length", 15)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer.forward(np.array([[97, 98]], np.int32)).shape[:2] == (1, 2)


def test_the_answer_names_each_byte():
    logits = np.full((4, 256), -9.0, np.float32)
    logits[range(4), list(b"a\n\xc3\xa9")] = 9.0
    (example,) = text_examples([np.array([7, 8, 9], np.int32)], Tokenizer())
    assert [part.text for part in example.answer(logits).parts] == ["a", "\\n", "C3"]
    (example,) = text_examples([np.array([7, 8, 9, 10], np.int32)], Tokenizer())
    answer = example.answer(logits)
    assert [part.text for part in answer.parts] == ["a", "\\n", "é", "·"]
    assert (answer.text, answer.probability) == ("a\\né", None)


@pytest.mark.slow
def test_the_inspection_page_shows_the_test_text(trainer, text):
    own = LanguageModelTrainer(LanguageModelConfig(**TINY, data=text))
    own.params = trainer.params
    first, second = own.test_examples([0, 1])
    test = SENTENCE * 2
    assert first.title == "\\n" + test[:14].decode()
    assert first.expected == test[:15].decode()
    assert (second.title, second.expected) == (test[7:22].decode(), test[8:23].decode())
    page = inspection_page(own)
    assert [example.title for example in page.examples][:2] == [first.title, second.title]
    assert text_of(page).startswith(f"{first.title}\n  → {page.answers[0].text}")


@pytest.mark.parametrize(
    ("name", "value"), [("max_new", 0), ("seed", -1), ("temperature", 0.0), ("top_k", 0), ("top_p", 1.5)]
)
def test_a_draw_that_cannot_be_made_is_an_error(trainer, name, value):
    with pytest.raises(InputError, match=f"^{name} is {value}"):
        trainer.predict("a", **{name: value})


def test_a_text_longer_than_a_window_has_no_maps(trainer):
    with pytest.raises(InputError, match=r"the text 'aaaa.*' has 17 bytes; it may have 1 to 16"):
        trainer.attention("a" * 17)


def test_logits_of_nan_are_an_error():
    trainer = LanguageModelTrainer(LanguageModelConfig(**TINY))
    params = drawn(trainer.model, np.zeros((1, WINDOW), int))["params"]
    params["decoder"]["norm"]["scale"][:] = np.nan
    trainer.params = params
    with pytest.raises(InputError, match="logits that are NaN"):
        trainer.predict("a")


@pytest.mark.slow
def test_a_text_of_repetitions_is_learned_and_the_run_keeps_all(tmp_path, text, capsys):
    settings = TINY | SHORT | {"max_epochs": 20, "eval_every": 20, "quiet": False, "top_k": 1}
    trainer, results = train_language_model(data=text, checkpoint_dir=tmp_path, **settings)
    printed = capsys.readouterr().out
    bits = results["bits_per_byte"]
    assert bits["this model"] == pytest.approx(results["test"]["bits_per_byte"], rel=1e-5)
    assert bits["this model"] < 0.5
    assert results["bytes"] == {"train": 1620, "val": 90, "test": 90}
    assert results["criterion"] == "val/bits_per_byte:min"
    assert "Bits per byte of the test text, 90 bytes:\n" in printed
    assert all(f"{name} " in printed and f" {number:.3f}\n" in printed for name, number in bits.items())
    directory = tmp_path / "LanguageModelTask"
    assert json.loads((directory / "results.json").read_text())["bits_per_byte"] == bits
    assert (directory / "attention_maps.png").read_bytes().startswith(b"\x89PNG")
    samples = (directory / "samples.txt").read_text(encoding="utf-8")
    assert samples in printed
    assert samples.count("--- after ") == 3
    assert trainer.predict("The quick brown ", max_new=60) == (SENTENCE * 3).decode()[16:76]


@pytest.mark.slow
def test_a_run_is_evaluated_on_another_text_continues_a_prompt_and_is_begun_from(tmp_path_factory, tmp_path):
    few = {"train_size": 70, "max_new": 5, "batch_size": 14}
    settings = [f"--{name.replace('_', '-')}={value}" for name, value in (LANGUAGE_MODEL | few).items()]
    run = finished_run(tmp_path_factory, "LanguageModelTask")
    other = tmp_path / "other.txt"
    other.write_bytes(SENTENCE[::-1] * 10)
    place = ["--checkpoint-dir", tmp_path]
    evaluate = ["language_model.py", "--pretrained", run, "--data", other, "--seq-len", 11, *place]
    outcome = call(*evaluate, "--prompt", "The", "--max-new", 5, "--top-k", 1)
    assert (outcome.status, outcome.stderr) == (0, "")
    directory = tmp_path / "LanguageModelTask_pretrained"
    assert json.loads((directory / "results.json").read_text())["bytes"]["test"] == 22
    assert (directory / "samples.txt").read_text(encoding="utf-8").startswith("--- after 'The':\n")
    (directory / "results.json").unlink()
    outcome = call("language_model.py", "--pretrained", run, "--prompt", "The", "--max-new", 5, "--quiet", *place)
    assert (outcome.stdout, outcome.stderr) == (load_run(run).predict("The", max_new=5) + "\n", "")
    assert not (directory / "results.json").exists()  # nothing was evaluated
    begun = ["--init-from", run, "--name=more", "--mesh", "fsdp=2", "--scan-layers"]
    outcome = call("language_model.py", *settings, "--data", other, *begun, *place)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert json.loads((tmp_path / "more" / "results.json").read_text())["steps"] == 2 * 70 // 14
    outcome = call("language_model.py", "--pretrained", run, "--data", other, *place)
    assert (outcome.status, outcome.stderr.count("\n")) == (2, 1)
    assert f"--seq-len is 256; it must be 11, as in the training of {run}" in outcome.stderr
