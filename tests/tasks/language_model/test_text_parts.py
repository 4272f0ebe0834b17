"""Splits of a text: where it is cut, and which file it is read from."""

import numpy as np
import pytest

from transformer_jax import InputError, LanguageModelConfig
from transformer_jax.tasks.language_model import windows as text_windows
from transformer_jax.tasks.language_model.docstrings import SEPARATOR
from transformer_jax.tasks.language_model.task import language_model_data
from transformer_jax.tasks.language_model.windows import load_text, split_text, windows

BYTES = bytes(range(256)) * 4 + b"end"  # 1027
TEXT = np.frombuffer(BYTES, np.uint8)


@pytest.mark.parametrize(
    ("ends", "sizes"),
    [
        (None, {"train": 925, "val": 51, "test": 51}),
        ([500, 930, 960, 1000, 1027], {"train": 930, "val": 70, "test": 27}),
    ],
    ids=["anywhere", "between documents"],
)
def test_the_end_of_a_text_is_held_out_and_no_byte_is_lost(ends, sizes):
    parts = split_text(TEXT, None if ends is None else np.array(ends))
    assert parts.sizes() == sizes
    assert np.concatenate(parts).tobytes() == BYTES


def test_not_more_than_a_bound_is_held_out(monkeypatch):
    monkeypatch.setattr(text_windows, "MAX_HELD_OUT", 7)
    assert split_text(TEXT).sizes() == {"train": 1013, "val": 7, "test": 7}


def test_a_file_is_read_as_bytes(tmp_path):
    (tmp_path / "text").write_bytes(BYTES)
    parts = load_text(tmp_path / "text")
    assert np.concatenate(parts).tobytes() == BYTES
    assert windows(parts.val, np.array([2, 0]), 3).tolist() == [list(BYTES[927:930]), list(BYTES[925:928])]


def test_the_text_without_a_file_is_the_docstrings_one_after_another(monkeypatch):
    texts = [f"Text {number}.\n" for number in range(999)]
    monkeypatch.setattr(text_windows, "library_docstrings", lambda: tuple(texts))
    parts = load_text(None)
    assert np.concatenate(parts).tobytes().decode() == "".join(text + SEPARATOR for text in texts)
    assert all(part.tobytes().decode().endswith(SEPARATOR) for part in parts)


def test_a_file_that_cannot_be_read_or_is_too_short_is_an_error(tmp_path):
    path = tmp_path / "text"
    with pytest.raises(InputError, match=f"^{path} can't be read: No such file"):
        load_text(path)
    for content, size in ((BYTES, 51), (b"x", 0)):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"too short for seq_len, 61: the part for val has {size} tokens"):
            language_model_data(LanguageModelConfig(data=path, seq_len=61))
