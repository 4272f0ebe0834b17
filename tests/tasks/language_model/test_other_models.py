"""What the language model is compared with: n-grams by the formula, compressors by their output's size."""

import collections
import gzip
import lzma

import numpy as np
import pytest

from transformer_jax.tasks.language_model.report import ngram_probabilities, other_bits, prompts, table
from transformer_jax.tasks.language_model.windows import split_text

TRAIN = b"the cat sat on the mat; the rat sat on the cat\xff" * 3
TEST = b"the bat sat on \x00\xffthe cat"


def by_the_formula(order: int, text: bytes, position: int) -> float:
    """p(text[position] | the bytes before it), counted one by one."""
    following = collections.defaultdict(collections.Counter)
    for length in range(order + 1):
        for i in range(length, len(TRAIN)):
            following[length, TRAIN[i - length : i]][TRAIN[i]] += 1
    p = 1 / 256
    for length in range(min(order, position) + 1):
        counts = following.get((length, text[position - length : position]))
        if counts is None:
            break
        n, u = counts.total(), len(counts)
        p = (counts[text[position]] + u * p) / (n + u)
    return p


@pytest.mark.parametrize("order", [0, 1, 2, 5, 7])
def test_n_grams_are_those_of_the_formula(order):
    expected = [by_the_formula(order, TEST, position) for position in range(len(TEST))]
    np.testing.assert_allclose(ngram_probabilities(TRAIN, TEST, order), expected, rtol=1e-12)
    assert len(ngram_probabilities(TRAIN, TEST[:1], order)) == 1  # shorter than the contexts


@pytest.mark.parametrize("context", [b"", b"the c", b"\xff\x00zzzz", b"sat on"])
def test_probabilities_of_all_bytes_after_a_context_add_up_to_one(context):
    found = [ngram_probabilities(TRAIN, context + bytes([b]), 5)[-1] for b in range(256)]
    assert sum(found) == pytest.approx(1, abs=1e-12)


def as_text(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def test_compressors_are_those_of_the_library_at_their_highest_level():
    text = split_text(as_text(TRAIN * 11), 1)
    train, test = text.train.tobytes(), text.test.tobytes()
    bits = other_bits(text)
    assert bits["gzip alone"] == 8 * len(gzip.compress(test, 9)) / len(test)
    xz = {"preset": 9 | lzma.PRESET_EXTREME}
    sizes = [len(lzma.compress(part, **xz)) for part in (train + test, train)]
    assert bits["xz after the training text"] == 8 * (sizes[0] - sizes[1]) / len(test)
    assert list(bits) == [
        "order-5 n-grams", "gzip after the training text", "gzip alone", "xz after the training text", "xz alone",
    ]  # fmt: skip
    assert bits["gzip after the training text"] < bits["gzip alone"]
    assert bits["order-5 n-grams"] == -np.log2(ngram_probabilities(train, test, 5)).mean()


def test_only_the_end_of_a_large_training_text_is_learned_from(monkeypatch):
    monkeypatch.setattr("transformer_jax.tasks.language_model.report.MAX_LEARNED", 50)
    text = split_text(as_text(TRAIN * 11), 1)
    bits = other_bits(text)
    learned = text.train[-50:].tobytes()
    assert bits["order-5 n-grams"] == -np.log2(ngram_probabilities(learned, text.test.tobytes(), 5)).mean()
    assert "xz after the end of the training text" in bits
    assert "xz after the training text" not in bits


def test_the_table_is_in_the_order_of_the_bits():
    assert table({"this model": 2.0, "xz": 1.25, "order-5 n-grams": 8.5}).splitlines() == [
        "  xz               1.250",
        "  this model       2.000",
        "  order-5 n-grams  8.500",
    ]


def test_prompts_are_beginnings_of_thirds_and_never_empty():
    text = bytes(range(250))
    assert prompts(as_text(text)) == [text[start : start + 40] for start in (0, 83, 166)]
    assert all(prompts(as_text(b"a")))
