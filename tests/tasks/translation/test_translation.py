"""The translation task: training on pairs of text, translating with the run, the command line."""

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import call
from compiled_models import drawn
from made_once import made_once

from transformer_jax import load_run
from transformer_jax.data import Batch
from transformer_jax.nn.cached_decoding import DecodingCache
from transformer_jax.tasks.byte_text import END, PAD, START
from transformer_jax.tasks.translation.pairs import PairInputs, TextPair
from transformer_jax.tasks.translation.task import TranslationConfig, TranslationTrainer, report, train_translation

SMALL = {"model_dim": 24, "num_heads": 2, "num_layers": 1, "dim_feedforward": 32, "warmup": 10, "batch_size": 16}
MAX_BYTES = 17


@pytest.fixture(scope="module")
def copying(tmp_path_factory) -> Path:
    """Directory of a run on a file of pairs whose two sides differ only in case."""

    def train(directory: Path) -> None:
        words = ["".join(letters) for n in (2, 3) for letters in itertools.product("abcde", repeat=n)]
        lines = [*[f"{word}\t{word.upper()}\tignored" for word in words] * 5, f"long\t{'t' * (MAX_BYTES + 1)}"]
        (directory / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        train_translation(
            data=directory / "pairs.tsv", max_bytes=MAX_BYTES, max_epochs=20, lr=5e-3, checkpoint_dir=directory,
            **(SMALL | {"warmup": None}),
        )  # fmt: skip

    return made_once(tmp_path_factory, "copying", train) / "TranslationTask"


@pytest.fixture(scope="module")
def translator(copying) -> TranslationTrainer:
    return load_run(copying)


@pytest.mark.slow
def test_a_file_of_pairs_is_learned_and_reported(copying):
    results = json.loads((copying / "results.json").read_text())
    assert results["exact_match"] >= 0.9
    assert results["char_error_rate"] <= 0.05
    assert {"chrf", "bleu", "val_acc", "test_acc", "steps"} <= results.keys()
    assert results["val"].keys() == results["test"].keys() == {"loss", "accuracy"}
    assert results["pairs"] == {"train": 670, "val": 40, "test": 40, "too_long": 1, "held_elsewhere": 0}
    stored = json.loads((copying / "config.json").read_text())
    assert (stored["max_epochs"], stored["warmup"], stored["eval_every"]) == (20, 82, 1)  # of 41 · 20 steps
    assert (copying / "cross_attention.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_translation_does_not_depend_on_the_batch_nor_on_the_devices_that_share_it(translator):
    texts = ["abc", "d", "dcba" * 4, "bad"]
    together = translator.predict(texts)
    assert together[::3] == ["ABC", "BAD"]
    assert [translator.predict([text])[0] for text in texts] == together
    assert translator.predict(texts * 5) == together * 5  # more than a batch
    assert jax.default_backend() != "cpu" or translator.devices.mesh.size == 2
    alone = TranslationTrainer(dataclasses.replace(translator.config, num_devices=1))
    alone.params = translator.params
    assert (alone.devices.mesh.size, alone.predict(texts)) == (1, together)


# Of the byte after each one: "b" has 0.4 in all, "a" 0.6 · 0.55, "ad" 0.6 · 0.45.
NEXT_BYTE = {START: {"a": 0.6, "b": 0.4}, "a": {END: 0.55, "d": 0.45}, "b": {END: 1.0}, "d": {END: 1.0}}


class NextByte(nn.Module):
    """A translator with the probabilities of `NEXT_BYTE`."""

    def start_decoding(self, source, source_mask):
        return DecodingCache({}, {}, source_mask=source_mask)

    def decode_step(self, tokens, position, cache):
        return self(None, tokens), cache

    def __call__(self, source, target, source_mask=None, *, train=False):
        table = np.full((259, 259), -99.0, np.float32)
        for before, after in NEXT_BYTE.items():
            for token, probability in after.items():
                ids = [ord(x) if isinstance(x, str) else x for x in (before, token)]
                table[ids[0], ids[1]] = np.log(probability)
        return jnp.asarray(table)[target]


@pytest.mark.parametrize(
    ("width", "penalty", "translation", "probability"),
    [(1, 0.0, "a", 0.6 * 0.55), (3, 0.0, "b", 0.4), (3, 5.0, "ad", 0.6 * 0.45)],
)
def test_the_search_has_the_width_and_the_penalty_of_the_settings(width, penalty, translation, probability):
    config = TranslationConfig(beam_width=width, length_penalty=penalty, **SMALL)
    trainer = TranslationTrainer(config, model=NextByte())
    trainer.params = {}
    assert trainer.predict(["x", "yz"]) == [translation] * 2
    examples = trainer.examples(["x", "yz"])
    for answer in trainer.answers(examples):  # of commands and `predictions.tsv`
        assert (answer.text, answer.probability) == (translation, pytest.approx(probability))
    changed = examples[0].answer_to(np.log(np.eye(259) + 1e-9)[[END] * 16], is_changed=True)
    assert changed.text == ""


def test_a_text_is_searched_alone_and_several_in_batches_of_similar_length_with_as_many_hypotheses(monkeypatch):
    trainer = TranslationTrainer(TranslationConfig(beam_width=5, num_devices=1, **SMALL), model=NextByte())
    trainer.params, shapes, translate = {}, [], trainer._translate
    monkeypatch.setattr(trainer, "_translate", lambda params, x: (shapes.append(x.shape), translate(params, x))[1])
    trainer.predict("x")
    trainer.predict(["x", "y" * 20, "x", "y" * 40, "x", "x"])
    assert shapes == [(1, 16), (3, 16), (3, 48)]


@pytest.mark.slow
def test_the_loss_counts_real_tokens_alone():
    trainer = TranslationTrainer(TranslationConfig(**SMALL))
    source = np.array([[97, 98, PAD], [97, PAD, PAD]], np.int32)
    target = np.array([[START, 65, 66], [START, 65, END]], np.int32)
    targets = np.array([[65, 66, END], [65, END, PAD]], np.int32)
    params = drawn(trainer.model, source, target)["params"]
    loss = jax.jit(lambda inputs, targets: trainer.loss_function(
        params, Batch(inputs, targets, np.ones(2, bool)), None, train=False))  # fmt: skip
    elements = loss(PairInputs(source, target), targets)
    for name in ("loss", "accuracy"):
        np.testing.assert_array_equal(elements[name][1], [[1, 1, 1], [1, 1, 0]])
    source, target, targets = (
        np.pad(ids, ((0, 0), (0, more)), constant_values=PAD) for ids, more in ((source, 2), (target, 1), (targets, 1))
    )
    with_more = loss(PairInputs(source, target), targets)
    np.testing.assert_array_equal(with_more["loss"][1], [[1, 1, 1, 0], [1, 1, 0, 0]])
    np.testing.assert_allclose(with_more["loss"][0][:, :3], elements["loss"][0], atol=1e-5)


@pytest.mark.slow
def test_the_command_translates_with_a_model_that_ships_and_with_another_search(copying):
    outcome = call(
        "translate.py", "--interactive", "--pretrained", "dates", stdin="16 января 1931\u202fг.\r\n3. Mai 2017"
    )
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout == "1931-01-16\n2017-05-03\n"
    by_path = call("translate.py", "--interactive", "--pretrained", copying, "--beam-width", 3, stdin="abc\n\nbad\n")
    assert (by_path.status, by_path.stdout.split()) == (0, ["ABC", "BAD"])
    assert "has 0 bytes" in by_path.stderr


@pytest.mark.parametrize(("tokenizer", "unit"), [("bytes", "bytes"), ("words:2+", "words"), ("bpe:300", "pieces")])
@pytest.mark.usefixtures("without_type_checks")
def test_the_report_names_the_unit_of_the_accuracies(tokenizer, unit, capsys):
    config = TranslationConfig(target_tokenizer=tokenizer)
    trainer = SimpleNamespace(config=config, predict=lambda sources: ["b"])
    report(trainer, SimpleNamespace(splits=SimpleNamespace(test=[TextPair("a", "b")])))
    assert f"Accuracies are of {unit}, each" in capsys.readouterr().out
