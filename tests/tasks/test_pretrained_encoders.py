"""Encoders of HuggingFace Transformers with tokenizers: classes of texts, pairs and tokens, and vectors of texts."""

import json
from random import Random

import numpy as np
import pytest
import torch
import transformers
from huggingface_models import drawn
from tiny_encoders import ST, logits_of, saved, sentence_files

from transformer_jax import InputError, load_transformers, predict

pytestmark = pytest.mark.slow  # they compile

TEXTS = "w4 w11", "w5 w6 w7 w8 w9 w10 w11", "w12"
IDENTITY = "torch.nn.modules.linear.Identity"


def command(directory, lines, capsys):
    predict.carry_out(predict.read_command([str(directory), *lines]))
    return [line.split("\t")[1:3] for line in capsys.readouterr().out.splitlines()[1:]]


def test_tokens_have_labels_and_commands_print_entities_as_the_pipeline_of_transformers(tmp_path, capsys):
    names = dict(enumerate(["O", "B-PER", "I-PER", "I-LOC"]))
    model, tokenizer = saved(tmp_path, "BertForTokenClassification", id2label=names)
    tokenizer.add_special_tokens({"cls_token": "[CLS]", "sep_token": "[SEP]"})
    run, found = load_transformers(tmp_path), []
    for strategy in ("none", "simple"):
        pipeline = transformers.pipeline(
            "token-classification", model=model, tokenizer=tokenizer, aggregation_strategy=strategy,
            ignore_labels=["O"] if strategy == "simple" else [],
        )  # fmt: skip
        found.append(pipeline(list(TEXTS)))
    assert len({token["entity"] for tokens in found[0] for token in tokens}) > 2
    for text, spans, expected in zip(TEXTS, run.predict(list(TEXTS)), found[0], strict=True):
        assert [text[span.start : span.end] for span in spans] == [span.text for span in spans] == text.split()
        assert [span.label for span in spans] == [token["entity"] for token in expected]
        np.testing.assert_allclose([span.probability for span in spans], [each["score"] for each in expected], 1e-5)
    for (answer,), text, entities in zip(command(tmp_path, TEXTS, capsys), TEXTS, found[1], strict=True):
        shown = [
            f"{each['entity_group']}: {text[each['start'] : each['end']]} ({each['score']:.3g})" for each in entities
        ]
        assert answer == "; ".join(shown)
    (answer,) = run.answers(run.examples(TEXTS[0]))
    assert [part.place for part in answer.parts] == ["[CLS]", *TEXTS[0].split(), "[SEP]"]
    with pytest.raises(InputError, match="--top is 2; only classifiers of whole texts rank labels"):
        command(tmp_path, ["w4", "--top", "2"], capsys)


@pytest.mark.parametrize(
    ("config", "of_sentences", "function"),
    [
        ({}, None, torch.sigmoid),
        ({"problem_type": "regression"}, None, lambda logit: logit),
        ({"sbert_ce_default_activation_function": IDENTITY}, None, lambda logit: logit),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, None, lambda logit: logit),
        ({}, {"activation_fn": "torch.nn.modules.activation.Tanh"}, torch.tanh),
    ],
)
def test_a_single_class_gives_texts_and_pairs_a_score_as_the_files_say(
    config, of_sentences, function, tmp_path, capsys
):
    model, tokenizer = saved(tmp_path, "BertForSequenceClassification", num_labels=1, **config)
    if of_sentences:
        (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(of_sentences))
    run, pairs = load_transformers(tmp_path), [("w4 w11", "w5"), ("w4", "w11 w5 w6")]
    expected = [float(function(logits_of(model, tokenizer, *pair))) for pair in pairs]
    np.testing.assert_allclose(run.predict(pairs), expected, 1e-4)
    assert run.predict(pairs[0]) == pytest.approx(expected[0], 1e-4)
    assert run.predict("w4") == pytest.approx(float(function(logits_of(model, tokenizer, "w4"))), 1e-4)
    if not config:
        rows = command(tmp_path, ["\t".join(pairs[1]), "w4 w11"], capsys)
        assert rows == [[f"{run.predict(each):.5g}"] for each in (pairs[1], "w4 w11")]
        maps = run.attention(pairs[1])
        assert list(maps.key_labels["encoder"]) == ["[CLS]", "w4", "[SEP]", "w11", "w5", "w6", "[SEP]"]


def test_a_text_may_have_any_number_of_classes(tmp_path, capsys):
    names = dict(enumerate("abcdefg"))
    directory = tmp_path / "several"
    model, tokenizer = saved(
        directory, "BertForSequenceClassification", id2label=names, problem_type="multi_label_classification"
    )
    run = load_transformers(directory)
    probabilities = [logits_of(model, tokenizer, text).sigmoid().tolist() for text in TEXTS]
    expected = [{names[k]: p for k, p in enumerate(each) if p > 0.5} for each in probabilities]
    found = run.predict(list(TEXTS))
    assert [*map(list, found)] == [*map(list, expected)]
    assert len({len(each) for each in found}) > 1
    assert run.embed(TEXTS[0]).shape == (10,)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-4)
    assert command(directory, TEXTS[1:2], capsys) == [
        [", ".join(f"{name} {probability:.5g}" for name, probability in found[1].items())]
    ]
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"problem_type": None}))
    logits = logits_of(model, tokenizer, TEXTS[0])
    ((answer, probability),) = command(directory, TEXTS[:1], capsys)
    assert (answer, float(probability)) == (
        names[int(logits.argmax())],
        pytest.approx(float(logits.softmax(-1).max()), 1e-4),
    )
    del config["id2label"], config["problem_type"]
    (directory / "config.json").write_text(json.dumps(config))
    number = int(logits.argmax())
    assert load_transformers(directory).predict(TEXTS[0]) == transformers.BertConfig(num_labels=7).id2label[number]


POOLINGS = {
    "cls": lambda x: x[0], "mean": lambda x: x.mean(0), "max": lambda x: x.max(0).values, "lasttoken": lambda x: x[-1],
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
}  # fmt: skip


@pytest.mark.parametrize("pooling", POOLINGS)
def test_texts_are_embedded_as_the_files_say(pooling, tmp_path):
    model, tokenizer = saved(tmp_path, "BertModel")
    rng = np.random.default_rng(0)
    kernels = [rng.normal(size=shape).astype(np.float32) for shape in ((7, 10), (3, 7))]
    bias = rng.normal(size=7).astype(np.float32)
    named = {"pooling_mode": pooling}
    if pooling == "cls":  # as older versions write it
        named = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    dense = {"linear.weight": kernels[0], "linear.bias": bias}, {}
    last = {"linear.weight": kernels[1]}, {"bias": False, "activation_function": IDENTITY}
    sentence_files(tmp_path, named, dense, None, last, max_seq_length=5, do_lower_case=True)
    run = load_transformers(tmp_path)
    texts = [text.replace("w", "W") for text in TEXTS]
    embedded = run.embed(texts), run.embed(texts, normalize=False)
    for text, vector, other in zip(TEXTS, *embedded, strict=True):
        ids = tokenizer.backend_tokenizer.encode(text).ids
        cut = [*ids[:4], ids[-1]] if len(ids) > 5 else ids
        with torch.no_grad():
            outputs = model(torch.tensor([cut])).last_hidden_state[0]
        hidden = torch.tanh(torch.tensor(kernels[0]) @ POOLINGS[pooling](outputs) + torch.tensor(bias))
        np.testing.assert_allclose(vector, kernels[1] @ (hidden / hidden.norm()).numpy(), atol=2e-5)
        np.testing.assert_allclose(other, kernels[1] @ hidden.numpy(), atol=2e-5)
    np.testing.assert_allclose(np.linalg.norm(run.embed(texts, normalize=True), axis=1), 1, atol=1e-5)
    assert run.embed(texts, "mean").shape == (3, 10)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "pooling_mode in .* is 'weightedmean'; it must be"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True},
            r"pooling_mode in .* is \['cls', 'max'\]; it must be one of cls, ",
        ),
        ("modules.json", [{"type": f"{ST}models.Transformer", "path": ""}], "has the modules Transformer; they must"),
        ("modules.json", [{"type": "my.Transformer", "path": ""}], "has the modules my.Transformer; they must be a"),
        ("modules.json", [{"type": 1, "path": ""}], "modules.json is not a list of modules"),
        ("sentence_bert_config.json", {"tokenizer_args": {"a": 1}}, "tokenizer_args in .* is {'a': 1}; it must be"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt_name in .* is 'query'"),
        ("2/config.json", {"in_features": 10, "use_residual": True}, "use_residual in .* is True; it must be one of"),
        ("2/config.json", {"in_features": 9, "out_features": 3}, "in_features in .* is 9; it must be one of 10"),
        ("2/config.json", {"in_features": 10, "out_features": 4}, r"linear.bias in .* has the shape \[3\]; it"),
        (
            "2/config.json",
            {"in_features": 10, "out_features": 3, "activation_function": "evil.Fn"},
            "activation_function in .* is 'evil.Fn'; it must be one of torch",
        ),
    ],
)
def test_what_is_not_supported_in_files_of_sentence_transformers_is_named(file, content, message, tmp_path):
    saved(tmp_path, "BertModel")
    arrays = {"linear.weight": np.zeros((3, 10), np.float32), "linear.bias": np.zeros(3, np.float32)}
    sentence_files(tmp_path, {"pooling_mode": "cls"}, (arrays, {}))
    run = load_transformers(tmp_path)
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        run.embed("w4")


def test_a_text_is_cut_to_the_tokenizers_limit_alone(tmp_path):
    saved(tmp_path, "BertModel")
    run, text = load_transformers(tmp_path), "w5 " * 16
    with pytest.raises(InputError, match=r"the text 'w5 .* has 18 tokens; the model takes at most 17"):
        run.embed(text)
    sentence_files(tmp_path, {"pooling_mode": "cls"})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    run = load_transformers(tmp_path)
    np.testing.assert_allclose(run.embed(text), run.embed("w5 " * 15), atol=1e-6)
    theirs = drawn("bert", Random(17))
    assert type(theirs).__name__ == "RobertaForMaskedLM"
    theirs.save_pretrained(tmp_path)  # whose first two positions are not for tokens
    with pytest.raises(InputError, match=r"the text 'w5 .* has 28 tokens; the model takes at most 27"):
        load_transformers(tmp_path).predict("w5 " * 26)


@pytest.mark.parametrize("kind", ["DistilBert", "MPNet"])
def test_an_encoder_without_token_types_answers_pairs_with_maps_and_embeds_texts(kind, tmp_path):
    names, pair = dict(enumerate("abc")), ("w4 w11", "w5 w6")
    model, tokenizer = saved(tmp_path / "classes", f"{kind}ForSequenceClassification", id2label=names)
    run, expected = load_transformers(tmp_path / "classes"), logits_of(model, tokenizer, *pair).softmax(-1)
    assert run.predict(pair) == names[int(expected.argmax())]
    (answer,) = run.answers(run.examples([pair]))
    assert answer.probability == pytest.approx(float(expected.max()), abs=1e-5)
    assert list(run.attention(pair).key_labels["encoder"]) == ["[CLS]", "w4", "w11", "[SEP]", "w5", "w6", "[SEP]"]
    model, tokenizer = saved(tmp_path / "vectors", f"{kind}Model")
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}  # as all-mpnet-base-v2 has them
    sentence_files(tmp_path / "vectors", flags, None, max_seq_length=7, do_lower_case=False)
    vectors = load_transformers(tmp_path / "vectors").embed(list(TEXTS))
    for text, vector in zip(TEXTS, vectors, strict=True):
        ids = tokenizer.backend_tokenizer.encode(text).ids
        with torch.no_grad():
            outputs = model(torch.tensor([[*ids[:6], ids[-1]] if len(ids) > 7 else ids])).last_hidden_state[0]
        mean = outputs.mean(0)
        np.testing.assert_allclose(vector, mean / mean.norm(), atol=1e-5)
