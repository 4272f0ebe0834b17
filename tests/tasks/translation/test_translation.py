"""The translation task: training on pairs of text, translating with the run, the command line."""

import dataclasses
import json
import subprocess
import sys

import jax
import numpy as np
import pytest
from repository import REPOSITORY

from transformer_jax import load_run
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.tasks.translation.byte_text import END, PAD, START, VOCABULARY_SIZE, encode
from transformer_jax.tasks.translation.padded_pairs import PairBatch
from transformer_jax.tasks.translation.report import byte_labels
from transformer_jax.tasks.translation.task import TranslationConfig, TranslationTrainer, train_translation

COMMAND = [sys.executable, str(REPOSITORY / "experiments" / "translate.py")]
SMALL = {"model_dim": 24, "num_heads": 2, "num_layers": 1, "dim_feedforward": 32, "warmup": 10, "batch_size": 16}


def test_the_model_is_made_by_the_settings():
    settings = {"model_dim": 15, "num_heads": 5, "dim_feedforward": 13, "dropout_prob": 0.25}
    assert TranslationTrainer(TranslationConfig(num_layers=3, **settings)).model == Transformer(
        source_vocabulary_size=VOCABULARY_SIZE,
        target_vocabulary_size=VOCABULARY_SIZE,
        num_encoder_layers=3,
        num_decoder_layers=3,
        tie_embeddings=True,
        **settings,
    )


@pytest.fixture(scope="module")
def copying(tmp_path_factory) -> TranslationTrainer:
    """A run on a file of pairs whose two sides are alike but for their case."""
    directory = tmp_path_factory.mktemp("copying")
    words = ["".join(letters) for letters in np.random.default_rng(0).choice(list("abcd"), size=(3000, 3))]
    lines = [f"{word}\t{word.upper()}\tignored" for word in sorted(set(words))] * 25
    (directory / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    trainer, _ = train_translation(
        data=directory / "pairs.tsv", max_bytes=17, max_epochs=12, lr=5e-3, checkpoint_dir=directory, **SMALL
    )
    return trainer


def test_a_file_of_pairs_is_learned_and_reported(copying):
    results = json.loads((copying.run.path / "results.json").read_text())
    assert results["exact_match"] >= 0.9
    assert results["char_error_rate"] <= 0.05
    assert {"chrf", "bleu", "val_acc", "test_acc", "steps"} <= results.keys()
    assert (copying.run.path / "cross_attention.png").read_bytes().startswith(b"\x89PNG")


def test_a_loaded_run_translates_as_the_trained_one_whatever_the_batch(copying):
    loaded = load_run(copying.run.path)
    texts = ["abc", "d", "dcba" * 4, "bad"]
    assert loaded.predict(texts) == copying.predict(texts)
    assert [loaded.predict([text])[0] for text in texts] == loaded.predict(texts)


def test_greedy_translation_is_what_teacher_forcing_predicts_of_itself(copying):
    (translation,) = copying.predict(["cab"])
    target = np.concatenate([encode(translation, delimited=True)])[None]
    logits = copying.forward(PairBatch(encode("cab")[None], target))
    np.testing.assert_array_equal(logits.argmax(-1)[0], target[0, 1:])


def test_beam_search_is_a_setting_of_the_translation(copying, tmp_path):
    loaded = load_run(copying.run.path)
    wide = TranslationTrainer(TranslationConfig(**{**vars(loaded.config), "beam_width": 3, "length_penalty": 0.0}))
    wide.params = loaded.params
    texts = ["abc", "bad", "dad"]
    assert wide.predict(texts) == loaded.predict(texts)  # it is sure of these


def test_devices_that_share_a_batch_translate_as_one_does(copying):
    texts = ["abc", "d", "dcba" * 4, "bad"]
    assert jax.default_backend() != "cpu" or copying.mesh.size == 2
    alone = TranslationTrainer(dataclasses.replace(copying.config, num_devices=1))
    alone.params = copying.params
    assert alone.predict(texts) == copying.predict(texts)


def test_the_loss_counts_real_tokens_alone():
    trainer = TranslationTrainer(TranslationConfig(**SMALL))
    source = np.array([[97, 98, PAD], [97, PAD, PAD]], np.int32)
    target = np.array([[START, 65, 66, END], [START, 65, END, PAD]], np.int32)
    params = trainer.initial_state(PairBatch(source, target), 100).params
    elements = trainer.loss_function(params, PairBatch(source, target), None, train=False)
    np.testing.assert_array_equal(elements["loss"][1], [[1, 1, 1], [1, 1, 0]])
    more_padding = PairBatch(
        np.pad(source, ((0, 0), (0, 2)), constant_values=PAD), np.pad(target, ((0, 0), (0, 1)), constant_values=PAD)
    )
    padded = trainer.loss_function(params, more_padding, None, train=False)
    np.testing.assert_allclose(padded["loss"][0][:, :3], elements["loss"][0], atol=1e-5)
    assert trainer.model.target_vocabulary_size == VOCABULARY_SIZE


@pytest.mark.parametrize("text", ["", "a" * 18])
def test_a_text_that_is_empty_or_too_long_is_an_error(copying, text):
    with pytest.raises(ValueError, match=f"has {len(text)} bytes; it may have 1 to 17"):
        copying.predict([text])


def test_labels_stand_for_bytes():
    assert byte_labels("3 я日") == ["3", "␣", "я", "·", "65E5", "·", "·"]


def test_dates_train_with_at_most_four_shapes(tmp_path):
    trainer, results = train_translation(
        train_size=400, val_size=50, test_size=60, checkpoint_dir=tmp_path, **(SMALL | {"warmup": 2})
    )
    assert trainer._eval_step.count <= 4
    assert results["steps"] == 25
    assert 0 <= results["exact_match"] <= 1
    translations = trainer.predict(["3. Januar 2017", "2017年1月3日"])
    assert all(len(text) <= 11 for text in translations)  # with the end, a date has 11 tokens


def test_the_command_translates_standard_input(copying):
    process = subprocess.run(
        [*COMMAND, "--interactive", "--checkpoint-dir", str(copying.run.path.parent)],
        input="abc\n\ndad\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stdout.split() == copying.predict(["abc", "dad"])
    assert "has 0 bytes" in process.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere.tsv"], "nowhere.tsv"),
        (["--beam-width", "0"], "beam_width is 0"),
        (["--max-bytes", "5000"], "max_bytes is 5000"),
    ],
)
def test_the_command_line_shows_an_error_in_one_line_with_status_2(tmp_path, arguments, message):
    process = subprocess.run(
        [*COMMAND, "--checkpoint-dir", str(tmp_path / "runs"), *arguments], capture_output=True, text=True
    )
    assert process.returncode == 2
    assert process.stderr.count("\n") == 1
    assert message in process.stderr
    assert not (tmp_path / "runs").exists()
