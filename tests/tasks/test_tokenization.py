"""Tokenizers: texts are restored exactly, bits are counted per byte, and a run keeps its tokenizer."""

import dataclasses
import json
import math
import os
import shutil
import signal

import jax
import numpy as np
import pytest
import tokenizers
import torch
import transformers
from compiled_models import drawn

from transformer_jax import InputError, LanguageModelConfig, load_run, train_language_model, train_translation
from transformer_jax.fit.loop import TrainingLoop
from transformer_jax.fit.signals import Interrupted
from transformer_jax.tasks import LanguageModelTrainer
from transformer_jax.tasks.language_model import task as language_model
from transformer_jax.tasks.language_model.task import language_model_data
from transformer_jax.tasks.tokenization import PieceTokenizer, Tokenizer, check_tokenizer, read_pieces, text_after
from transformer_jax.tasks.tokenizer_training import train_tokenizer
from transformer_jax.tasks.translation.task import TranslationConfig, TranslationTrainer

KINDS = ["characters", "words", "bpe:300", "unigram:400"]
TEXT = "The quick brown fox jumps over the lazy dog, 7 times.\n\tIt naps: 日本語 too.\n"
HARD = "日本語 한국어 😀👩‍👩‍👧 \x00\x7f é e\u0301 ﷽ <0x41> <unk> <pad>\r\n\t  x "
TINY = {"model_dim": 16, "num_heads": 2, "num_layers": 1, "dim_feedforward": 32, "seq_len": 11, "batch_size": 8}
SHORT = {"train_size": 40, "warmup": 1, "eval_every": 1, "max_epochs": 2, "max_new": 5, "quiet": True, "num_devices": 1}


@pytest.fixture(scope="module")
def fox(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "fox.txt"
    path.write_text(TEXT * 60)
    return path


def terminated_after(method):
    def then_signalled(*arguments):
        method(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    return then_signalled


@pytest.fixture(params=KINDS, scope="module")
def tokenizer(request):
    return train_tokenizer(request.param, [TEXT])


def test_every_text_comes_back_and_its_tokens_have_its_bytes(tokenizer):
    for text in (TEXT, HARD, "", "<0x41>"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.num_bytes[ids].sum() == len(text.encode())
        assert tokenizer.lengths([text, TEXT]).tolist() == [len(ids), len(tokenizer.encode(TEXT))]
        assert len(tokenizer.labels(ids)) == len(ids)
    assert len(tokenizer.encode(TEXT)) <= len(TEXT)


def test_bytes_of_no_text_become_replacement_characters(tokenizer):
    assert tokenizer.decode(tokenizer.encode(b"a\xff\xfe")) == "a\ufffd\ufffd"
    assert Tokenizer().to_bytes(Tokenizer().encode(b"a\xff\xfe")) == b"a\xff\xfe"


def test_special_tokens_have_the_ids_after_the_tokenizers_own(tokenizer):
    ids = tokenizer.encode("fox", delimited=True)
    size = tokenizer.size
    assert (tokenizer.pad, ids[0], ids[-1], tokenizer.vocabulary_size) == (size, size + 1, size + 2, size + 3)
    assert tokenizer.decode(np.array([*ids, tokenizer.pad, ids[1]])) == "fox"
    assert (tokenizer.labels(ids)[0], tokenizer.labels(ids)[-1]) == ("start", "end")


def test_a_tokenizer_is_the_same_after_a_file(tmp_path):
    """Tested with many pieces, whose probabilities have all digits."""
    text = " ".join(f"{word}{number % 7}{word}" for number, word in enumerate(dir(np) + dir(jax)))
    for kind in ("unigram:600", "bpe:600"):
        trained = train_tokenizer(kind, [text])
        (tmp_path / "tokenizer.json").write_text(trained.file)
        read = PieceTokenizer(read_pieces(tmp_path / "tokenizer.json"))
        assert read.file == trained.file
        assert read.encode(text).tolist() == trained.encode(text).tolist()


def test_words_and_characters_of_the_training_are_one_token_each():
    words = train_tokenizer("words", [TEXT])
    assert words.labels(words.encode("The lazy fox")) == ["The", " lazy", " fox"]
    characters = train_tokenizer("characters", [TEXT])
    assert characters.labels(characters.encode("日x")) == ["日", "x"]


def test_words_that_are_rarer_than_a_least_count_are_written_as_bytes():
    words = train_tokenizer("words:2+", [TEXT, "the fox", "The quick fox"])
    assert words.decode(words.encode(TEXT)) == TEXT
    assert words.labels(words.encode("The quick fox naps")) == ["The", " quick", " fox", *" naps"]
    with pytest.raises(InputError, match=r"^tokenizer is words:7\+; no word of these texts occurs more than 3 times"):
        train_tokenizer("words:7+", [TEXT, "the fox", "The quick fox"])


def test_a_long_text_is_as_small_as_its_vocabulary_allows_and_must_come_back(tokenizer):
    content = np.frombuffer((TEXT * 2000).encode(), np.uint8)  # more than one part
    ids = tokenizer.encode_file(content, "the text")
    assert (ids.dtype, tokenizer.to_bytes(ids)) == (np.uint16, content.tobytes())
    with pytest.raises(InputError, match="^the text is not UTF-8 at byte 3; use the tokenizer bytes for such"):
        tokenizer.encode_file(np.frombuffer(b"ab\xff", np.uint8), "the text")


def test_a_tokenizer_that_changes_the_text_can_not_score_bits_per_byte():
    shortening = tokenizers.Tokenizer(tokenizers.models.WordLevel({"x": 0, "?": 1}, unk_token="?"))
    lowering = tokenizers.Tokenizer.from_str(train_tokenizer("characters", ["xyz"]).file)
    lowering.normalizer = tokenizers.normalizers.Lowercase()
    for pieces in (shortening, lowering):
        with pytest.raises(InputError, match="^the tokenizer changes the text; its bits per byte would be those of"):
            PieceTokenizer(pieces).encode_file(np.frombuffer(b"XYZ", np.uint8), "the text")


def test_truncation_and_padding_in_a_tokenizer_file_are_disabled(tmp_path):
    pieces = tokenizers.Tokenizer.from_str(train_tokenizer("characters", [TEXT]).file)
    pieces.enable_truncation(5)
    pieces.enable_padding(length=7)
    pieces.save(str(tmp_path / "tokenizer.json"))
    tokenizer = PieceTokenizer(read_pieces(tmp_path / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert len(tokenizer.encode("fox")) == 3


def of_llama():
    """A tokenizer of Llama's kind: a space before the text, spaces as ▁, bytes of other characters."""
    letters = [f"<0x{number:02X}>" for number in range(256)] + ["▁", *"abcdehnosty.,"]
    pieces = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {piece: number for number, piece in enumerate(["<unk>", *letters])},
            [],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    normalizers, decoders = tokenizers.normalizers, tokenizers.decoders
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    pieces.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return pieces


def of_bert():
    """A tokenizer of BERT's kind, which joins word pieces and removes spaces before punctuation."""
    words = ["the", "cat", "on", "s", "'", ",", ".", "##s", "##at", "日"]
    pieces = tokenizers.Tokenizer(tokenizers.models.WordPiece({word: number for number, word in enumerate(words)}))
    pieces.pre_tokenizer, pieces.decoder = tokenizers.pre_tokenizers.BertPreTokenizer(), tokenizers.decoders.WordPiece()
    return pieces


def of_t5():
    """A tokenizer of T5's kind: pieces with the space before them."""
    pieces = [("<unk>", 0.0), *((piece, -1.0) for piece in ("▁the", "▁cat", "▁on", "s", ",", ".", "▁", "日"))]
    found = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    found.pre_tokenizer, found.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    return found


def of_words():
    """A tokenizer without a decoder, which joins words by spaces."""
    pieces = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"the": 0, "cat": 1, "cats": 2, "on": 3, ",": 4, "日": 5, ".": 6})
    )
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return pieces


@pytest.mark.parametrize("make", [of_llama, of_bert, of_t5, of_words, *KINDS, None])
def test_a_text_and_its_continuation_are_the_text_of_all_tokens(make):
    tokenizer = Tokenizer() if make is None else train_tokenizer(make, [TEXT]) if make in KINDS else make()
    for text in ("the cats on the cat", "the cat, on 日 .", "the"):
        encoded = tokenizer.encode(text)
        ids = np.array(getattr(encoded, "ids", encoded))
        whole = tokenizer.decode(ids)
        for place in range(len(ids) + 1):
            before = tokenizer.decode(ids[:place])
            if "\ufffd" not in before:  # else it ends inside a character
                assert before + text_after(tokenizer.decode, ids[:place], ids[place:]) == whole


def test_a_continuation_that_changes_the_text_before_it_is_the_text_of_its_own_tokens():
    bytes_of = train_tokenizer("bpe:300", ["x"])
    ids = bytes_of.encode("日")
    assert text_after(bytes_of.decode, ids[:1], ids[1:]) == "\ufffd\ufffd"


def test_a_language_model_with_a_tokenizer_of_llama_s_kind_continues_with_the_space(tmp_path, monkeypatch):
    of_llama().save(str(tmp_path / "tokenizer.json"))
    trainer = LanguageModelTrainer(LanguageModelConfig(**TINY, tokenizer=str(tmp_path / "tokenizer.json")))
    trainer.params = {}
    new = trainer.tokenizer.encode("sat")  # ▁ s a t
    monkeypatch.setattr(trainer, "_continuation", lambda *given, **draws: new)
    assert trainer.predict(["the cat", b"the cat"]) == [" sat", b" sat"]


WORDS = tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]")
PIECES = tokenizers.models.Unigram([("a", 0.0)], None, False)
TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "z", "type_id": 0}}], "pair": []}
STRIP = {"type": "Strip", "content": "a", "start": 5, "stop": 5}


@pytest.mark.parametrize(
    ("model", "changed", "use"),
    [
        (WORDS, {}, lambda tokenizer: tokenizer.encode("b")),  # `tokenizers` raises bare exceptions here
        (PIECES, {}, lambda tokenizer: tokenizer.lengths(["b"])),
        (WORDS, {"post_processor": {**TEMPLATE, "special_tokens": {}}}, lambda tokenizer: tokenizer.encode("a")),
        (WORDS, {"decoder": STRIP}, lambda tokenizer: tokenizer.decode([0])),  # and panics here
        (WORDS, {"decoder": STRIP}, lambda tokenizer: tokenizer.labels([0])),
        (WORDS, {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, None),
        (tokenizers.models.WordLevel({}, unk_token="[UNK]"), {}, None),
    ],
)
def test_whatever_the_library_raises_is_one_line(tmp_path, model, changed, use):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(tokenizers.Tokenizer(model).to_str()) | changed))

    def open_and_use():
        tokenizer = PieceTokenizer(read_pieces(file)).with_own_tokens(5, 6, 7, adds_them=True)
        return use(tokenizer)

    with pytest.raises(InputError, match="^[^\n]*(can't|cannot|has 0 pieces)[^\n]*$"):
        open_and_use()


def test_a_text_of_more_characters_than_pieces_can_not_train_them():
    with pytest.raises(InputError, match="tokenizer is unigram:300, which cannot be trained on these texts: The vocab"):
        train_tokenizer("unigram:300", ["".join(map(chr, range(0x4E00, 0x4F00)))])


def test_a_file_with_bpe_dropout_encodes_a_text_always_in_the_same_way(tmp_path):
    pieces = tokenizers.Tokenizer.from_str(train_tokenizer("bpe:300", [TEXT]).file)
    expected = pieces.encode(TEXT).ids
    pieces.model.dropout = 0.5
    pieces.save(str(tmp_path / "tokenizer.json"))
    tokenizer = PieceTokenizer(read_pieces(tmp_path / "tokenizer.json"))
    assert {tuple(tokenizer.encode(TEXT)) for _ in range(9)} == {tuple(expected)}
    assert json.loads(tokenizer.file)["model"]["dropout"] is None  # as the run keeps it


@pytest.mark.parametrize("model", [{"type": "WordLevel", "unk_token": "a"}, {"type": "BPE", "merges": []}])
@pytest.mark.parametrize("largest", [1004, 10**9, 2**31, 2**32 - 1])
def test_no_array_is_sized_by_an_id_of_a_file_that_has_few_pieces(largest, model, tmp_path):
    def write(number):
        content = {"version": "1.0", "added_tokens": [], "model": model | {"vocab": {"a": 0, "b": number}}}
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))

    write(largest)
    with pytest.raises(InputError, match=f"json has 2 pieces, and the largest id is {largest}; it must be below 1004"):
        read_pieces(tmp_path / "tokenizer.json")
    write(1003)
    assert PieceTokenizer(read_pieces(tmp_path / "tokenizer.json")).size == 1004


@pytest.mark.parametrize("value", ["letters", "bpe", "bpe:299", "unigram:1048577", f"bpe:{10**30}", "words:5"])
def test_another_tokenizer_is_an_error(value):
    with pytest.raises(InputError, match=r"^tokenizer is "):
        check_tokenizer("tokenizer", value)


def test_bits_per_byte_are_the_tokens_losses_over_the_bytes_of_the_text(fox, tmp_path):
    config = LanguageModelConfig(**TINY, data=fox, tokenizer="bpe:300", num_devices=1, checkpoint_dir=tmp_path)
    trainer, data = LanguageModelTrainer(config), language_model_data(config)
    ids = data.test_loader.dataset.text
    trainer.params = drawn(trainer.model, ids[None, :11].astype(np.int32))["params"]
    metrics = trainer.evaluate(data.test_loader)
    expected = metrics["loss"] / math.log(2) * len(ids) / len(data.text.test)
    assert len(ids) < 0.8 * len(data.text.test)
    assert metrics["bits_per_byte"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_run_keeps_its_tokenizer_goes_on_with_it_bitwise_and_opens_with_it(fox, tmp_path, monkeypatch):
    settings = TINY | SHORT | {"data": fox, "tokenizer": "bpe:300", "max_epochs": 3}
    whole, results = train_language_model(checkpoint_dir=tmp_path / "whole", **settings)
    with monkeypatch.context() as patched:
        patched.setattr(TrainingLoop, "_evaluate_epoch", terminated_after(TrainingLoop._evaluate_epoch))
        with pytest.raises(Interrupted, match="saved after step (5|10);"):
            train_language_model(checkpoint_dir=tmp_path / "cut", **settings)
    language_model._trained.cache_clear()
    monkeypatch.setattr(language_model, "train_tokenizer", None)  # trained once
    cut, _ = train_language_model(checkpoint_dir=tmp_path / "cut", **settings)
    jax.tree.map(np.testing.assert_array_equal, cut.params, whole.params)
    directory = tmp_path / "cut" / "LanguageModelTask"
    assert PieceTokenizer(read_pieces(directory / "tokenizer.json")).size == 300

    moved = directory.rename(tmp_path / "elsewhere")
    load_run(moved).save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["tokenizer"] == "tokenizer.json"
    assert str(moved) not in (tmp_path / "saved" / "README.md").read_text()
    for place in (moved, tmp_path / "saved"):
        run = load_run(place)
        assert run.predict("The fox", max_new=7) == whole.predict("The fox", max_new=7)
        assert run.attention("The fox").key_labels["decoder"] == run.tokenizer.labels(run.tokenizer.encode("The fox"))
    assert load_run(moved).test()["test"] == pytest.approx(results["test"])
    again = SHORT | {"init_from": str(moved), "data": fox, "batch_size": 8, "lr": 1e-9, "max_epochs": 1}
    begun, _ = train_language_model(checkpoint_dir=tmp_path / "begun", **again)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), begun.params, whole.params)
    (tmp_path / "saved" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="tokenizer.json can't be read: No such file"):
        load_run(tmp_path / "saved")
    swapped = json.loads((moved / "tokenizer.json").read_text())
    vocabulary = swapped["model"]["vocab"]
    vocabulary["a"], vocabulary["z"] = vocabulary["z"], vocabulary["a"]
    for place in (moved, tmp_path / "saved"):
        (place / "tokenizer.json").write_text(json.dumps(swapped))
        with pytest.raises(InputError, match="tokenizer.json was damaged or changed"):
            load_run(place)


@pytest.mark.slow
def test_a_model_of_transformers_is_trained_further_and_written_back(fox, tmp_path):
    sizes = transformers.GPT2Config(vocab_size=307, n_embd=16, n_layer=1, n_head=2, n_positions=13)
    theirs = transformers.GPT2LMHeadModel(sizes)
    theirs.save_pretrained(tmp_path / "gpt2")
    (tmp_path / "gpt2" / "tokenizer.json").write_text(train_tokenizer("bpe:300", [TEXT]).file)
    settings = SHORT | {"data": fox, "seq_len": 11, "batch_size": 8, "checkpoint_dir": tmp_path}
    trainer, results = train_language_model(init_from=str(tmp_path / "gpt2"), lr=1e-9, **settings)
    ids = trainer.tokenizer.encode("The lazy fox")[None]
    expected = theirs.eval()(torch.tensor(ids)).logits.detach().numpy()
    np.testing.assert_allclose(trainer.forward(ids), expected, atol=1e-4)
    assert (trainer.config.model_dim, trainer.config.num_heads) == (16, 2)
    shutil.rmtree(tmp_path / "gpt2")
    run = load_run(tmp_path / "LanguageModelTask")
    np.testing.assert_allclose(run.forward(ids), expected, atol=1e-4)
    assert run.test()["test"] == pytest.approx(results["test"])
    with pytest.raises(InputError, match=r"seq_len is 17; the model of .* takes at most 13 tokens"):
        LanguageModelTrainer(dataclasses.replace(run.config, seq_len=17))


@pytest.mark.slow
def test_an_encoder_decoder_of_the_hub_is_trained_further_with_its_own_tokens(tmp_path, monkeypatch):
    """Like T5's: sources end with `</s>`, targets begin with `pad`, and both are in the vocabulary."""
    (tmp_path / "pairs").write_text("".join(f"{n}\t{'abc'[n % 3] * (n % 5 + 1)}\n" for n in range(60)))
    pieces = tokenizers.Tokenizer(tokenizers.models.BPE())
    pieces.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    pieces.add_special_tokens(["<pad>", "</s>"])
    pieces.add_tokens(list("0123456789abc"))
    pieces.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    sizes = {"d_model": 16, "d_kv": 8, "num_heads": 2, "num_layers": 1, "d_ff": 32, "dropout_rate": 0.0}
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    theirs = transformers.T5ForConditionalGeneration(transformers.T5Config(vocab_size=17, **sizes, **ids))
    theirs.save_pretrained(tmp_path / "t5")
    pieces.save(str(tmp_path / "t5" / "tokenizer.json"))
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda name, allow_patterns: tmp_path / name[4:])
    settings = {"data": tmp_path / "pairs", "checkpoint_dir": tmp_path, "max_bytes": 13, "batch_size": 8}
    settings |= {"quiet": True, "num_devices": 1, "max_epochs": 2, "warmup": 1, "eval_every": 1}
    trainer, results = train_translation(init_from="any/t5", lr=1e-9, **settings)

    pairs = trainer.test_set
    sources, targets = ([getattr(pair, side) for pair in pairs] for side in ("source", "target"))
    losses, count = 0.0, 0
    for source, target in zip(sources, targets, strict=True):
        labels = torch.tensor([[*pieces.encode(target, add_special_tokens=False).ids, 1]])
        loss = theirs.eval()(torch.tensor([pieces.encode(source).ids]), labels=labels).loss
        losses, count = losses + float(loss.detach()) * labels.numel(), count + labels.numel()
    assert results["test"]["loss"] == pytest.approx(losses / count, rel=1e-5)

    shutil.rmtree(tmp_path / "t5")
    run = load_run(tmp_path / "TranslationTask")
    run.save(tmp_path / "saved")
    assert run.predict(sources) == trainer.predict(sources) == load_run(tmp_path / "saved").predict(sources)
    example = run.test_examples([0])[0]
    assert example.labels["encoder"] == [*sources[0], "end"]
    assert example.labels["decoder"][0] == "start"
    with pytest.raises(InputError, match="source_tokenizer is bytes; with architecture it must be"):
        train_translation(run.config, source_tokenizer="bytes", name="bytes")
    smaller = tmp_path / "smaller.json"
    smaller.write_text(run.config.architecture.read_text().replace('"vocab_size": 17', '"vocab_size": 11'))
    with pytest.raises(InputError, match="source_tokenizer has 15 tokens; the model of .*smaller.json has only 11"):
        train_translation(run.config, architecture=smaller, name="smaller")


@pytest.mark.slow
def test_translations_have_tokens_of_their_own(tmp_path):
    numbers = list(enumerate(["one", "two", "three", "four", "five", "six", "seven"], 1))
    (tmp_path / "pairs").write_text("".join(f"{a}{b}\t{x} {y}\n" for a, x in numbers for b, y in numbers))
    sizes = {name: value for name, value in TINY.items() if name != "seq_len"}
    settings = {"source_tokenizer": "characters", "target_tokenizer": "words", "max_epochs": 40, "lr": 1e-2}
    settings |= {"checkpoint_dir": tmp_path, "quiet": True, "num_devices": 1}
    trainer, _ = train_translation(data=tmp_path / "pairs", **sizes, **settings)
    assert trainer.model.source_vocabulary_size < trainer.model.target_vocabulary_size
    run = load_run(tmp_path / "TranslationTask")
    assert run.predict(["34", "71"]) == ["three four", "seven one"]
    (example,) = run.read_examples(["34"])
    assert (example.labels["encoder"], example.labels["decoder"]) == (["3", "4"], ["start", "three", " four"])


def test_a_joint_tokenizer_is_that_of_both_sides_with_one_matrix_of_embeddings(tmp_path):
    (tmp_path / "pairs").write_text("".join(f"das Haus {n}\tthe house {n}\n" for n in range(60)))
    sizes = {name: value for name, value in TINY.items() if name != "seq_len"}
    settings = {"joint_tokenizer": "words:2+", "data": tmp_path / "pairs", "checkpoint_dir": tmp_path}
    trainer = TranslationTrainer(TranslationConfig(**sizes, **settings))
    source, target = trainer.tokenizers
    assert source is target
    assert source.labels(source.encode("das house")) == ["das", " house"]
    ids = source.encode("the house", delimited=True)[None]
    params = drawn(trainer.model, ids, ids)["params"]
    matrices = [array for array in jax.tree.leaves(params) if source.vocabulary_size in array.shape and array.ndim == 2]
    assert len(matrices) == 1
    trainer.params, trainer.results = params, {}
    trainer.save(tmp_path / "saved")
    saved = load_run(tmp_path / "saved")
    assert saved.tokenizers.target.file == target.file
    assert not (tmp_path / "saved" / "source_tokenizer.json").exists()
