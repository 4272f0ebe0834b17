"""Models of HuggingFace Transformers with tokenizers: text in, text or classes out, and the page on what they do."""

import io
import json
import re
import shutil
from random import Random

import jax
import numpy as np
import pytest
import sentencepiece
import torch
import transformers
from huggingface_models import WORDS, drawn, drawn_of_31_tokens, saved_with_words
from repository import REPOSITORY

from transformer_jax import InputError, capture, from_transformers, load_transformers, make_loader, predict
from transformer_jax.data import ArrayDataset
from transformer_jax.inspection import __main__ as inspection
from transformer_jax.inspection import activation_names, generate

pytestmark = pytest.mark.slow  # they compile

DOCUMENT = (REPOSITORY / "docs" / "pretrained.md").read_text()
TEXT = "w3 w17 w5 w30 w4"


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    return saved_with_words(drawn_of_31_tokens("gpt2"), tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def translator(tmp_path_factory):
    return saved_with_words(drawn_of_31_tokens("marian"), tmp_path_factory.mktemp("translator"))


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    return saved_with_words(drawn_of_31_tokens("bert", head="ForMaskedLM"), tmp_path_factory.mktemp("masked"))


def test_a_language_model_continues_a_text_as_transformers_does(causal):
    theirs, run = transformers.GPT2LMHeadModel.from_pretrained(causal), load_transformers(causal)
    for text in ("w9", TEXT):
        ids = torch.tensor([run.tokenizer.encode(text).ids])
        expected = theirs.generate(ids, do_sample=False, max_new_tokens=11, pad_token_id=0)[0, ids.shape[1] :]
        assert run.predict([text], max_new=11) == [f" {run.tokenizer.decode(expected.tolist())}"]
    tokens, _ = generate(run.inspected, ids.numpy(), 11)
    np.testing.assert_array_equal(tokens[0, ids.shape[1] :], expected)


@pytest.mark.parametrize("family", ["bart", "mt5"])
def test_a_config_alone_says_how_to_generate_even_in_the_words_of_the_first_barts(family, tmp_path):
    directory = saved_with_words(drawn_of_31_tokens(family), tmp_path)
    (directory / "generation_config.json").unlink()
    config = json.loads((directory / "config.json").read_text())
    for name in ("decoder_start_token_id", "eos_token_id", "forced_eos_token_id"):
        config.pop(name, None)
    config |= {"force_bos_token_to_be_generated": True, "bos_token_id": 7, "no_repeat_ngram_size": 2, "max_length": 13}
    (directory / "config.json").write_text(json.dumps(config))
    theirs, run = transformers.AutoModelForSeq2SeqLM.from_pretrained(directory), load_transformers(directory)
    expected = theirs.generate(torch.tensor([run.tokenizer.encode(TEXT).ids]), do_sample=False)[0]
    assert expected[1] == 7
    assert run.predict(TEXT) == run.tokenizer.decode(expected[1:].tolist())


@pytest.mark.parametrize("kind", ["causal", "translator", "masked"])
def test_texts_of_unequal_lengths_are_answered_as_one_by_one_by_two_programs(kind, request, monkeypatch):
    run, traced = load_transformers(request.getfixturevalue(kind)), []
    apply = type(run.model).apply

    def counted(model, *args, **kwargs):
        traced.append(kwargs.get("method"))
        return apply(model, *args, **kwargs)

    monkeypatch.setattr(type(run.model), "apply", counted)
    texts = [f"w{first} [MASK] {TEXT}"[: 3 * first] for first in range(3, 10)]  # of one to seven words
    settings = {} if kind == "masked" else {"max_new": 5}
    alone = [run.predict(text, **settings) for text in texts]
    once = len(traced)  # in the first program; those after it were compiled already
    assert run.predict(texts, **settings) == alone
    assert len(set(alone)) > 1
    assert len(traced) == 2 * once <= 8


def test_an_encoder_embeds_texts_as_sentence_bert_does(tmp_path):
    theirs = drawn_of_31_tokens("bert", head="BertModel")
    run = load_transformers(saved_with_words(theirs, tmp_path))
    texts = ["w9", TEXT, f"{TEXT} {TEXT}"]
    for pooling, weights in (("mean", lambda size: np.full(size, 1 / size)), ("first", lambda size: np.eye(size)[0])):
        found = run.embed(texts, pooling, normalize=False)
        for text, vector in zip(texts, found, strict=True):
            ids = torch.tensor([run.tokenizer.encode(text).ids])
            with torch.no_grad():
                outputs = theirs(ids).last_hidden_state[0].numpy()
            np.testing.assert_allclose(vector, weights(len(outputs)) @ outputs, atol=1e-5 * np.abs(outputs).max())
    np.testing.assert_allclose(np.linalg.norm(run.embed(texts), axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(run.embed("w9"), run.embed(texts)[0], atol=1e-6)
    with pytest.raises(InputError, match="the model has no head to answer with; use embed, which returns a vector"):
        run.predict(TEXT)
    assert run.answers(run.examples(TEXT))[0].text == ""
    with pytest.raises(InputError, match="pooling is 'maximum'; it must be one of"):
        run.embed(TEXT, "maximum")


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_files_of_sentencepiece_are_read_as_by_transformers(translator, tmp_path):
    directory = shutil.copytree(translator, tmp_path / "marian")
    (directory / "tokenizer.json").unlink()
    texts = {"source": "w3 w17 w5", "target": "ein kleiner Frosch", "other": "7 日本語 👩‍👩‍👧 w17"}
    pieces = ["</s>", "<unk>", "<pad>", ">>de<<"]
    for name in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([texts[name]] * 9), model_writer=(model := io.BytesIO()), vocab_size=19,
            hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
        (directory / f"{name}.spm").write_bytes(model.getvalue())
        found = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        pieces += map(found.id_to_piece, range(3, found.get_piece_size()))
    ids = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    (directory / "vocab.json").write_text(json.dumps(ids))
    (directory / "tokenizer_config.json").write_text("{}")
    theirs, ours = transformers.MarianTokenizer.from_pretrained(directory), load_transformers(directory).tokenizer
    for text in (*texts.values(), ">>de<< w3", "a << b", ""):
        assert ours.encode(text).ids == theirs(text).input_ids
    assert ours.decode([*theirs(text_target=texts["target"]).input_ids, ids["<pad>"]]) == texts["target"]
    assert ours.id_to_token(ids[">>de<<"]) == ">>de<<"
    assert load_transformers(directory).predict("w3", max_new=5) is not None
    (directory / "target.spm").write_bytes(b"\x0a\xff")
    with pytest.raises(InputError, match="target.spm is not a SentencePiece file, or damaged"):
        load_transformers(directory)


def test_encoders_answer_as_in_transformers(masked, tmp_path):
    theirs, run = transformers.AutoModelForMaskedLM.from_pretrained(masked), load_transformers(masked)
    text = "w3 [MASK] w5"
    ids = torch.tensor([run.tokenizer.encode(text).ids])
    word = WORDS[int(theirs(ids).logits[0, 1].argmax())]
    assert run.predict(text) == " ".join(["w3", *([word] if word not in WORDS[:3] else []), "w5"])
    model = drawn_of_31_tokens("bert", head="ForSequenceClassification")
    model.config.id2label = {number: f"class {number}" for number in range(5)}
    classifier = load_transformers(saved_with_words(model, tmp_path))
    ids = torch.tensor([classifier.tokenizer.encode(TEXT).ids])
    assert classifier.predict(TEXT) == f"class {int(model(ids).logits.argmax())}"
    (answer,) = classifier.answers(classifier.examples(TEXT))
    assert (answer.text, len(answer.parts)) == (classifier.predict(TEXT), 1)
    probability = float(model(ids).logits.softmax(-1).max().detach())
    assert answer.probability == pytest.approx(probability, rel=1e-4)


@pytest.mark.parametrize("kind", ["causal", "translator", "masked"])
def test_maps_and_answers_have_the_models_tokens(kind, request):
    run = load_transformers(request.getfixturevalue(kind))
    maps = run.attention(TEXT)
    if kind == "translator":
        run.generation |= {"num_beams": 3}  # whose answer need not be the most probable tokens
        maps = run.attention(TEXT)
    stack = "decoder" if kind == "causal" else "encoder"
    assert list(maps.key_labels[stack]) == TEXT.split()
    if kind == "causal":
        run.tokenizer.add_tokens(["Ġw"])
        assert run.examples("Ġw")[0].labels == [" w"]
    inputs = run.model_inputs(run.examples(TEXT)[0].inputs)
    names = [f"{stack}.layers.0.attention.weights"]
    _, seen = capture(run.model, run.variables, *inputs, names=names)
    np.testing.assert_allclose(maps.maps[stack][0], seen[names[0]][0], atol=1e-6)
    np.testing.assert_allclose(run.capture(TEXT, names)[1][names[0]], seen[names[0]], atol=1e-6)
    (answer,) = run.answers(run.examples([TEXT]))
    assert len(answer.parts) == (len(maps.query_labels["decoder"]) if kind == "translator" else 5)
    if kind == "translator":
        assert answer.text.startswith(run.predict(TEXT))


def test_the_table_of_activations_names_those_that_models_have(causal, tmp_path):
    drawn("llama", Random(0)).save_pretrained(tmp_path)  # whose feed-forward is gated
    models = [from_transformers(directory)[0] for directory in (causal, tmp_path)]
    there = {name for model in models for name in activation_names(model, np.ones((1, 2), int))}
    named = re.findall(r"^\| `(.*?)` \|", DOCUMENT.partition("## Names of activations")[2], re.MULTILINE)
    assert len(named) > 20
    assert set(named) <= there


def test_the_commands_write_the_page_and_answer(causal, tmp_path, capsys):
    page = tmp_path / "page.html"
    inspection.carry_out(inspection.read_command([str(causal), TEXT, "--output", str(page)]))
    assert TEXT in capsys.readouterr().out
    assert page.stat().st_size > 10_000
    predict.carry_out(predict.read_command([str(causal), TEXT]))
    assert f"{TEXT}\t{load_transformers(causal).predict(TEXT)}\n" in capsys.readouterr().out


def test_the_code_on_pretrained_models_runs(causal, tmp_path, monkeypatch):
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    code = "\n".join([block for block in blocks if "gguf" not in block][:3])  # that one has a test of its own
    shutil.copytree(causal, tmp_path / "gpt2")
    monkeypatch.chdir(tmp_path)
    ids = np.random.default_rng(0).integers(31, size=(40, 8))
    loader = make_loader(ArrayDataset(ids[:, :-1], ids[:, 1:]), 8)
    names = {"tokens": ids[:1], "train_loader": loader, "val_loader": loader}
    exec(code, names)
    before, after = (jax.tree.leaves(each) for each in (names["variables"]["params"], names["trainer"].params))
    moved = max(float(np.abs(one - other).max()) for one, other in zip(before, after, strict=True))
    assert 0 < moved < 1e-4  # in five steps of at most 1e-5
    assert len(names["seen"]) == names["model"].num_layers
    assert transformers.AutoModelForCausalLM.from_pretrained("again").config.n_layer == names["model"].num_layers


def test_errors_are_one_line(causal, masked, tmp_path, monkeypatch):
    run = load_transformers(masked)
    for settings, message in (
        ({"beam_width": 2}, "a TransformerMLM cannot generate text; leave out num_beams"),
        ({"max_new": 0}, "max_new is 0"),
    ):
        with pytest.raises(InputError, match=message):
            run.predict(TEXT, **settings)
    with pytest.raises(InputError, match="a TransformerMLM cannot chat"):
        run.chat([{"role": "user", "content": TEXT}])
    run = load_transformers(causal)
    for wrong, message in (("w3 " * 98, "98 tokens; the model takes at"), ("", "has no tokens"), (3, "must be a text")):
        with pytest.raises(InputError, match=message):
            run.examples(wrong)
    copied = shutil.copytree(causal, tmp_path / "copied")
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="tokenizer.json is not a tokenizer.json, or damaged"):
        load_transformers(copied)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match="some/model is not a directory, and cannot be downloaded") as caught:
        load_transformers("some/model")
    assert "\n" not in str(caught.value)
