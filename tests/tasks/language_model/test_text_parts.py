"""A text's parts: where it is cut, and that a file's bytes are read only when they are asked for."""

import os
import pickle
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

from transformer_jax import InputError
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.tasks.language_model import text_parts
from transformer_jax.tasks.language_model.docstrings import SEPARATOR, library_docstrings
from transformer_jax.tasks.language_model.text_parts import MAX_HELD_OUT, TextPart, load_text, split_text

BYTES = bytes(range(256)) * 4 + b"end"  # 1027


@pytest.fixture
def without_type_checks():
    """Users call without the type checks of the tests, which would come first."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_the_end_of_a_text_is_held_out_and_no_byte_is_lost():
    parts = split_text(BYTES, 1)
    assert parts.sizes() == {"train": 925, "val": 51, "test": 51}
    assert b"".join(part[:] for part in parts) == BYTES


def test_documents_stay_whole():
    ends = np.array([500, 930, 960, 1000, 1027])
    parts = split_text(BYTES, 1, ends)
    assert parts.sizes() == {"train": 930, "val": 70, "test": 27}
    assert b"".join(part[:] for part in parts) == BYTES


def test_not_more_than_a_bound_is_held_out(monkeypatch):
    monkeypatch.setattr(text_parts, "MAX_HELD_OUT", 7)
    assert split_text(BYTES, 1).sizes() == {"train": 1013, "val": 7, "test": 7}


def test_a_part_in_a_file_is_that_in_memory(tmp_path: Path):
    (tmp_path / "text").write_bytes(BYTES)
    mapped, in_memory = load_text(tmp_path / "text", 1), split_text(BYTES, 1)
    for name in ("train", "val", "test"):
        one, other = getattr(mapped, name), getattr(in_memory, name)
        assert one[:] == other[:]
        assert one[3:11] == other[3:11] == other[:][3:11]
        assert one[9:4] == b""
        starts = np.array([0, 17, 40])
        np.testing.assert_array_equal(one.windows(starts, 5), other.windows(starts, 5))
        assert fingerprint([], one) == fingerprint([], other) == fingerprint([], np.frombuffer(other[:], np.uint8))
        assert pickle.loads(pickle.dumps(one))[:] == other[:]
    assert mapped.val.windows(np.array([2]), 3).tolist() == [list(BYTES[927:930])]


def test_a_file_of_terabytes_takes_no_memory(tmp_path: Path):
    with (tmp_path / "text").open("wb") as file:
        os.truncate(file.fileno(), 2**40)
    parts = load_text(tmp_path / "text", 256)
    assert parts.sizes() == {"train": 2**40 - 2 * MAX_HELD_OUT, "val": MAX_HELD_OUT, "test": MAX_HELD_OUT}
    assert not parts.train.windows(np.array([0, 2**39]), 1000).any()


def test_the_text_without_a_file_is_the_docstrings_one_after_another():
    parts = load_text(None, 256)
    whole = b"".join(part[:] for part in parts).decode()
    assert whole == "".join(text + SEPARATOR for text in library_docstrings())
    for part in parts:
        assert part[:].decode().endswith(SEPARATOR)
    assert 0.04 * len(whole) < len(parts.test) < 0.06 * len(whole)


def test_a_file_that_was_cut_off_is_an_error(tmp_path: Path):
    (tmp_path / "text").write_bytes(BYTES)
    part = load_text(tmp_path / "text", 1).test
    os.truncate(tmp_path / "text", 100)
    with pytest.raises(InputError, match="was cut off while it was read: it had 1027 bytes and has 100"):
        part.windows(np.array([0]), 3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "No such file"),
        (lambda path: path.mkdir(), "Is a directory"),
        (lambda path: path.touch(), "the file is empty"),
        (os.mkfifo, "not a regular file"),
        (
            lambda path: path.write_bytes(BYTES),
            "has 1027 bytes, of which 51 are for val; each part must have at least seq_len, 61$",
        ),
    ],
    ids=["none", "directory", "empty", "pipe", "short"],
)
def test_a_file_that_cannot_be_read_or_is_too_short_is_an_error(tmp_path, make, message):
    make(tmp_path / "text")
    with pytest.raises(InputError, match=f"{tmp_path / 'text'}:? .*{message}|{tmp_path / 'text'} {message}"):
        load_text(tmp_path / "text", 61)


def test_the_message_names_the_part_that_is_too_short():
    ends = np.array([500, 930, 1000, 1027])
    with pytest.raises(InputError, match="the text has 1027 bytes, of which 27 are for test; .* seq_len, 28$"):
        split_text(BYTES, 28, ends)


@pytest.mark.parametrize("part", [slice(None, None, 2), slice(None, None, -1), 3])
@pytest.mark.usefixtures("without_type_checks")
def test_what_is_not_a_slice_of_neighbouring_bytes_is_an_error(part):
    with pytest.raises(InputError, match=r"part is .*; it must be a slice of neighbouring bytes, \[start:stop\]"):
        TextPart(BYTES, 3, 10)[part]
    assert TextPart(BYTES, 3, 10)[1:3:1] == BYTES[4:6]


def test_a_part_has_the_type_and_the_shape_of_its_bytes():
    part = TextPart(BYTES, 3, 10)
    assert (part.dtype, part.shape, len(part)) == (np.uint8, (7,), 7)
    assert np.concatenate(list(part.blocks())).tobytes() == BYTES[3:10]
