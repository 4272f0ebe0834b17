"""Baselines of the language model: compressors, by the size of their output."""

import gzip
import lzma

import numpy as np

from transformer_jax.tasks.language_model.report import other_bits, prompts, table
from transformer_jax.tasks.language_model.windows import split_text

TRAIN = b"the cat sat on the mat; the rat sat on the cat\xff" * 3


def as_text(content: bytes) -> np.ndarray:
    return np.frombuffer(content, np.uint8)


def test_compressors_are_those_of_the_library_at_their_highest_level():
    text = split_text(as_text(TRAIN * 11))
    train, test = text.train.tobytes(), text.test.tobytes()
    bits = other_bits(text)
    xz = {"preset": 9 | lzma.PRESET_EXTREME}
    sizes = [len(lzma.compress(part, **xz)) for part in (train + test, train)]
    assert bits["xz after the training text"] == 8 * (sizes[0] - sizes[1]) / len(test)
    assert list(bits) == ["gzip after the training text", "xz after the training text"]


def test_only_the_end_of_a_large_training_text_is_learned_from(monkeypatch):
    monkeypatch.setattr("transformer_jax.tasks.language_model.report.MAX_LEARNED", 50)
    text = split_text(as_text(TRAIN * 11))
    bits = other_bits(text)
    learned, test = text.train[-50:].tobytes(), text.test.tobytes()
    growth = len(gzip.compress(learned + test, 9)) - len(gzip.compress(learned, 9))
    assert bits["gzip after the training text"] == 8 * growth / len(test)


def test_the_table_is_in_the_order_of_the_bits():
    assert table({"this": 2.0, "xz": 1.25, "gzip": 8.5}) == "  xz    1.250\n  this  2.000\n  gzip  8.500"


def test_prompts_are_beginnings_of_thirds_and_never_empty():
    text = bytes(range(250))
    assert prompts(as_text(text)) == [text[start : start + 40] for start in (0, 83, 166)]
    assert all(prompts(as_text(b"a")))
