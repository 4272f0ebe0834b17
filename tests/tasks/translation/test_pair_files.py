"""Files of sentence pairs: what is read, how it is split, and what each bad line says."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from transformer_jax.data.length_buckets import Shape
from transformer_jax.errors import InputError
from transformer_jax.tasks.translation.config import Tokenizers, TranslationConfig
from transformer_jax.tasks.translation.pairs import PairDataset, TextPair, load_pairs, read_pairs, split_pairs


@pytest.fixture
def file(tmp_path):
    def write(content: bytes, name: str = "pairs"):
        path = tmp_path / f"{name}.tsv"
        path.write_bytes(content)
        return path

    return write


def test_two_columns_are_read_further_ones_ignored_and_only_a_newline_ends_a_line(file):
    path = file("Go.\tVa !\tCC-BY 2.0\nRun!\t走れ\t\t\na\u2028b\x0bc\x85d\te\n".encode())
    assert read_pairs(path) == [TextPair("Go.", "Va !"), TextPair("Run!", "走れ"), TextPair("a\u2028b\x0bc\x85d", "e")]


@pytest.mark.parametrize(
    "content",
    [
        b"a\tb\nc\td",
        b"a\tb\r\nc\td\r\n",
        b"\xef\xbb\xbfa\tb\nc\td\n",
        b"a\tb\nc\td\n\n \r\n\n",
        b" a \t b\nc\td \n",
    ],
    ids=["no line end", "Windows", "byte order mark", "blank lines at the end", "spaces"],
)
def test_what_is_no_text_is_left_off(file, content):
    assert read_pairs(file(content)) == [TextPair("a", "b"), TextPair("c", "d")]


def test_in_lower_case_sources_that_differ_in_case_alone_are_in_one_split(file):
    content = "".join(f"Ä{number}\tB{number}\nä{number}\tC{number}\n" for number in range(31))
    splits = load_pairs(file(content.encode()), max_bytes=7, lower_case=True)
    assert {pair.target[0] for pair in splits.test} == {"b", "c"}
    assert {pair.source for pair in splits.test}.isdisjoint(pair.source for pair in splits.train)
    assert TranslationConfig(data=Path("x"), lower_case=True).cleaned(" ÄB ") == "äb"


NO_UTF8 = ":3 is not UTF-8; save the file as UTF-8"
NO_TAB = "no tab in the line; one must separate the source text from the target text"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\nc d\ne\tf\n", f":2: {NO_TAB}"),
        (b"a\tb\nc\td\n\xc3\xa9\xe9\tf\n", NO_UTF8),
        (b"a\tb\n\td\n", ":2: the source text is empty"),
        (b"", " is empty"),
        (b"\xef\xbb\xbf\r\n", ": no pairs left; the file is empty"),
        (b"abcdefgh\ta\nb\tabcdefgh\n", ": no pairs left; all 2 are longer than max_bytes, 7"),
    ],
)
def test_bad_input_is_named_with_file_line_and_reason(file, content, message):
    path = file(content)
    with pytest.raises(InputError) as error:
        load_pairs(path, max_bytes=7)
    assert str(error.value) == f"{path}{message}"


def sources(*parts: Sequence[TextPair]) -> set[str]:
    return {pair.source for pairs in parts for pair in pairs}


def test_pairs_longer_than_the_limit_are_counted(file):
    splits = load_pairs(file("aaaaaaa\tb\nééé\tb\néééé\tb\nc\tdddddddd\ne\tf\ng\th\n".encode()), max_bytes=7)
    assert sources(splits.train, splits.val, splits.test) == {"aaaaaaa", "ééé", "e", "g"}
    assert splits.counts() == {"train": 2, "val": 1, "test": 1, "too_long": 2, "held_elsewhere": 0}


LINES = b"a\tA\nb\tB\nc\tC\nd\tD\ne\tE\n"


def test_files_of_their_own_are_the_validation_and_the_test_set(file):
    path, val, test = file(LINES), file(b"b\tB\nb\tBB\nx\tX\n", "val"), file(b"y\tY\nlong text\tY\n", "test")
    splits = load_pairs(path, val_path=val, test_path=test, max_bytes=7)
    assert [pair.target for pair in splits.val] == ["B", "BB", "X"]
    assert [pair.target for pair in splits.test] == ["Y"]
    assert [pair.target for pair in splits.train] == ["A", "C", "D", "E"]  # b would have been trained on
    assert splits.counts() == {"train": 4, "val": 3, "test": 1, "too_long": 1, "held_elsewhere": 1}


@pytest.mark.parametrize(("given", "drawn"), [("val", "test"), ("test", "val")])
def test_where_one_file_is_given_the_other_set_is_drawn(file, given, drawn):
    splits = load_pairs(file(LINES), max_bytes=7, **{f"{given}_path": file(b"x\tX\n", given)})
    assert sources(getattr(splits, given)) == {"x"}
    assert len(getattr(splits, drawn)) == 1
    assert sources(splits.train, getattr(splits, drawn)) == set("abcde")


@pytest.mark.parametrize(
    ("content", "given", "message"),
    [
        (b"a\tb\na\tc\nd\te\n", [], "2 different sources that no other file has; it needs 3 or more"),
        (b"a\tb\n", ["val"], "1 different sources that no other file has; it needs 2 or more"),
        (b"x\tb\n", ["val", "test"], "0 different sources that no other file has; it needs 1 or more"),
    ],
)
def test_too_few_pairs_are_an_error(file, content, given, message):
    path, other = file(content), file(b"x\tX\n", "other")
    with pytest.raises(InputError, match=f"^data has {message}$"):
        load_pairs(path, max_bytes=7, **{f"{name}_path": other for name in given})


def test_a_source_is_in_one_split_with_all_its_targets_and_the_split_is_a_function_of_their_order(monkeypatch):
    many_pairs = [TextPair(f"source {number % 307}", f"target {number}") for number in range(613)]
    train, val, test = ([int(pair.target.removeprefix("target ")) for pair in part] for part in split_pairs(many_pairs))
    order = np.random.default_rng(42).permutation(307)
    assert [test, val] == [[n for n in range(613) if n % 307 in part] for part in (order[:15], order[15:30])]
    assert sorted([*train, *val, *test]) == list(range(613))
    monkeypatch.setattr("transformer_jax.tasks.translation.pairs.MAX_HELD_OUT", 7)
    assert [len({pair.source for pair in part}) for part in split_pairs(many_pairs)] == [307 - 14, 7, 7]


def test_the_three_sets_share_at_most_four_shapes(file):
    lines = [f"{'s' * (1 + number * number % 97)}{number}\t{'t' * (1 + number % 53)}" for number in range(401)]
    train, val, test = load_pairs(file("\n".join(lines).encode()), max_bytes=256).padded(Tokenizers())
    assert train.shapes == val.shapes == test.shapes
    assert len(train.shapes) == 4
    assert train.shapes[-1] == (100, 55)


def test_the_fingerprint_is_that_of_the_pairs_in_their_order_and_of_the_shape_to_which_they_are_padded():
    def fingerprint(*pairs, shape=(2, 3)):
        return PairDataset([TextPair(*pair) for pair in pairs], [Shape(*shape)], Tokenizers()).fingerprint()

    first = [("ab", "c"), ("d", "e")]
    others = [
        [("ab", "c"), ("d", "f")],
        [("ab", "c"), ("g", "e")],
        [("a", "bc"), ("d", "e")],  # texts end elsewhere
        [("a", "c"), ("bd", "e")],
        [("d", "e"), ("ab", "c")],
        [("ab", "c")],
    ]
    assert fingerprint(*first) == fingerprint(*first)
    prints = {fingerprint(*pairs) for pairs in (first, *others)} | {fingerprint(*first, shape=(3, 5))}
    assert len(prints) == 2 + len(others)
