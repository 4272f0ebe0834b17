"""Files of labelled texts, and how they are split."""

import json
from pathlib import Path

import numpy as np
import pytest

from transformer_jax import InputError
from transformer_jax.tasks.classification.coding import labels_of, tokenizer_of
from transformer_jax.tasks.classification.config import ClassificationConfig
from transformer_jax.tasks.classification.examples import class_targets, number_targets, split_texts
from transformer_jax.tasks.classification.files import LabelledText, read_labelled
from transformer_jax.tasks.classification.phrases import LOCALES, named_things, phrase_splits
from transformer_jax.tasks.classification.report import scores, simple_models, true_targets
from transformer_jax.weights.huggingface.pretrained import dropout_of

GOOD = [(("It, too",), ("good",)), (("two\nlines",), ("not bad",))]


def read(tmp_path, content, *columns, several=False, name="file"):
    *texts, label = columns or ("text", "label")
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(content)
    return [each[:2] for each in read_labelled(tmp_path / name, texts, label, has_several=several)]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('label,text\ngood,"It, too"\n\nnot bad,"two\nlines"\n', ()),
        ('\ufefftext;n;label\r\nIt, too;1;good\r\n"two\nlines";2;not  bad\r\n', ()),
        ('say\ttag\nIt, too\tgood\n"two\nlines"\tnot bad\n', ("say", "tag")),
        ('text,label\r"It, too",good\r"two\nlines",not bad\r', ()),
        ('{"text": "It, too", "label": "good"}\n\n{"label": "not bad", "text": "two\\nlines "}', ()),
    ],
)
def test_tables_of_spreadsheets_and_json_lines_are_read(content, columns, tmp_path):
    assert read(tmp_path, content, *columns) == GOOD


def test_a_table_without_header_has_text_and_label_and_its_quotes_are_text(tmp_path):
    assert read(tmp_path, 'a "b\t1\n"c\t0\n') == [(('a "b',), ("1",)), (('"c',), ("0",))]


def test_texts_may_be_in_two_columns(tmp_path):
    assert read(tmp_path, "q,c,label\nwho,me,yes\n", "q", "c", "label") == [(("who", "me"), ("yes",))]


def test_an_example_may_have_several_labels(tmp_path):
    several = "text,label\none,b | a|b\ntwo,\n"
    assert read(tmp_path, several, several=True) == [(("one",), ("b", "a")), (("two",), ())]
    lines = "\n".join(json.dumps({"text": "t", "label": label}) for label in (["x", 2], "x|y"))
    assert read(tmp_path, lines, several=True) == [(("t",), ("x", "2")), (("t",), ("x", "y"))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,b\nc,\n", "file:3: the label is empty"),
        ("text,label\na,b\nc\n", "file:3: the label is empty"),
        ("text,label\na,b\nHello, world,c\n", "file:3 has more cells than the header"),
        ('text,label\n"a\nb",c\n ,d\n', "file:4: the text is empty"),
        (b"text,label\na,b\n\xff,c\n", "file:3 is not UTF-8; save the file as UTF-8"),
        ("sentence\tlabel\na\tb\n", "file:1: the header is"),
        ("Text\tLabel\na\tb\n", "file:1: the header is"),
        ("sentence,label\na,b\n", "file:1: the header is 'sentence,label'; it must name the columns text, label, or"),
        ('text,label\n"a,b\n', "file:2 has an unpaired quote"),
        ('{"text": "a", "label": "b"}\nc\n', "file:2 is not a JSON object"),
        ('{"text": "a", "label": null}\n', "file:1: the label is empty"),
        ('{"text": "a", "label": "b"}\n{"txt": "a", "label": "b"}\n', "file:2: the text is missing"),
        ('{"text": "a", "label": ["b"]}\n', r"file:1: the label is \['b'\]; it must be a text, or a number"),
        ('{"text": "\\ud800", "label": "b"}\n', "file:1: the text is not Unicode"),
        ("text,label\n", "file has no labelled texts"),
    ],
)
def test_a_wrong_line_is_an_error_with_its_number(content, message, tmp_path):
    with pytest.raises(InputError, match=message) as raised:
        read(tmp_path, content)
    assert "\n" not in str(raised.value)


def texts(*labels, same=1):
    return [LabelledText((f"t{number // same}",), (label,), f"f:{number}") for number, label in enumerate(labels)]


def test_each_part_has_every_label():
    splits = split_texts(texts(*"a" * 40, *"b" * 20, same=2), None, None, by_label=True)
    counts = [[sum(each.labels == (label,) for each in part) for label in "ab"] for part in splits]
    assert counts == [[32, 16], [4, 2], [4, 2]]
    assert splits == split_texts(texts(*"a" * 40, *"b" * 20, same=2), None, None, by_label=True)


def test_equal_texts_stay_together():
    splits = split_texts(texts(*"a" * 40, *"b" * 20, same=2), None, None, by_label=True)
    sets = [{each.texts for each in part} for part in splits]
    assert sum(map(len, sets)) == len(set().union(*sets)) == 30


def test_given_test_texts_are_left_out_of_training():
    train, test = texts(*"ababa"), texts(*"ab")
    left = split_texts(train, test, test, by_label=True).train
    assert [each.texts for each in left] == [("t2",), ("t3",), ("t4",)]
    with pytest.raises(
        InputError, match="too few different texts: none is left for the set train, since a text is in one set"
    ):
        split_texts(test, test, test, by_label=True)


@pytest.mark.parametrize(
    ("problem", "smoothing"), [({}, 0.1), ({"regression": True}, None), ({"multi_label": True}, None)]
)
def test_defaults_that_are_filled_in_have_an_effect(problem, smoothing):
    config = ClassificationConfig(data=Path("f"), **problem).regularized()
    config.check_idle()
    assert (config.dropout_prob, config.label_smoothing) == (0.3, smoothing)
    assert ClassificationConfig(init_from="x").regularized().dropout_prob == 0.1


def test_labels_that_cannot_be_learned_are_errors(tmp_path):
    with pytest.raises(InputError, match="f:2: 'b' is the label of this text alone; .* or val_data and test_data$"):
        split_texts(texts(*"aab"), None, None, by_label=True)
    with pytest.raises(
        InputError, match="f:1: the label is 'b'; it must be one of 'a', .* or of the run that is resumed"
    ):
        class_targets(texts("a", "b"), ["a"])
    for label in ("x", "nan", "1e39"):
        with pytest.raises(InputError, match="f:1: with regression=True, labels must be numbers"):
            number_targets(texts("1.5", label))
    with pytest.raises(
        InputError, match="data has too few different texts: none is left for the set test, .*; give more texts"
    ):
        split_texts(texts(*"aabb"), None, None, by_label=True)
    (tmp_path / "data.csv").write_text("text,label\na,\nb,\nc,\n")
    with pytest.raises(InputError, match="data.csv has no labels"):
        labels_of(ClassificationConfig(data=tmp_path / "data.csv", multi_label=True), {})
    with pytest.raises(InputError, match="labels is a; with regression=True, labels are numbers"):
        labels_of(ClassificationConfig(data=tmp_path / "data.csv", regression=True, labels=Path("a")), {})


@pytest.mark.parametrize("known", ["ac", "c"])
def test_the_linear_model_answers_with_labels_of_the_training(known):
    labels, train = ["b", "c", "a"], texts(*known * 7)
    train = [each._replace(texts=(f"{each.labels[0]}!",)) for each in train]
    config = ClassificationConfig(data=Path("f"))
    targets = true_targets(config, train, labels)
    found = simple_models(config, train, train[:3], targets)["linear model on n-grams"]
    assert scores(config, targets[:3], found, labels)["accuracy"] == 1
    np.testing.assert_array_equal(number_targets(texts("1.5", "-2")), [[1.5], [-2]])


def test_phrases_of_the_test_name_nothing_that_is_named_in_training():
    train, val, test = phrase_splits()
    assert (len(train) > 7 * len(test), len(val) > 3_000, len(LOCALES)) == (True, True, 40)
    named = [{each.texts[0] for each in part} for part in (train, test)]
    german = named_things("de")
    assert german["territories", "DE"] == "Deutschland"
    in_test = [thing for thing, name in german.items() if name in named[1]]
    assert len(in_test) > 50
    for locale in ("fr", "nb"):
        assert not [name for thing in in_test if (name := named_things(locale).get(thing)) in named[0]]
    (angola,) = (each for part in (train, val, test) for each in part if each.texts == ("Angola",))
    assert {"de", "en", "es"} <= set(angola.labels)


def test_defaults_follow_from_the_case():
    fresh = ClassificationConfig(data=Path("f"))
    given = {"dropout_prob": 0.0, "label_smoothing": 0.2}
    configs = [fresh, ClassificationConfig(init_from="m"), ClassificationConfig(), ClassificationConfig(**given)]
    filled = [each.regularized() for each in configs]
    assert [(each.dropout_prob, each.label_smoothing) for each in filled] == [
        (0.3, 0.1),
        (0.1, 0.0),
        (0.1, 0.0),
        (0.0, 0.2),
    ]
    assert [fresh.resolved(steps).max_epochs for steps in (5, 137, 967)] == [30, 15, 6]
    assert configs[1].resolved(967).max_epochs == 3


def test_words_that_occur_once_are_bytes(tmp_path):
    (tmp_path / "data.csv").write_text("text,label\n" + "".join(f"red w{n:03},{'ab'[n % 2]}\n" for n in range(40)))
    tokenizer = tokenizer_of(ClassificationConfig(data=tmp_path / "data.csv", checkpoint_dir=tmp_path))
    assert tokenizer.encode("red ü").tokens == ["[CLS]", "red", *(f"<0x{byte:02X}>" for byte in " ü".encode()), "[SEP]"]


def test_dropout_of_a_config_is_that_of_its_family(tmp_path):
    for content, expected in (
        ({"dropout": 0.25, "attention_dropout": 0}, [0.25, 0]),
        ({"hidden_dropout_prob": 0.5}, [0.5, 0.1]),
        ({"model_type": "albert"}, [0, 0]),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content))
        assert [*dropout_of(tmp_path / "config.json").values()] == expected
    (tmp_path / "config.json").write_text('{"hidden_dropout_prob": 1.5}')
    with pytest.raises(InputError, match="hidden_dropout_prob in .*config.json is 1.5; it must be at least 0"):
        dropout_of(tmp_path / "config.json")
