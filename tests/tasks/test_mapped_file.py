"""Mapped files: bytes are read when asked for, a worker maps the file again, and one that was cut off is an error."""

import os
import pickle
import re
from pathlib import Path

import pytest

from transformer_jax.errors import InputError
from transformer_jax.tasks.mapped_file import MappedFile

CONTENT = bytes(range(256)) * 41


@pytest.fixture
def path(tmp_path) -> Path:
    (tmp_path / "data").write_bytes(CONTENT)
    return tmp_path / "data"


def test_any_bytes_of_the_file_are_read(path):
    file = MappedFile(path, len(CONTENT))
    assert len(file) == len(CONTENT)
    assert file[7:300] == CONTENT[7:300]
    assert file[len(CONTENT) - 3 : len(CONTENT) + 5] == CONTENT[-3:]


def test_what_is_pickled_is_the_path_whatever_the_directory(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    pickled = pickle.dumps(MappedFile(Path("data"), len(CONTENT)))
    assert len(pickled) < 500
    monkeypatch.chdir("/")
    assert pickle.loads(pickled)[7:300] == CONTENT[7:300]


def test_a_file_that_was_cut_off_is_an_error_and_not_the_end_of_the_process(path):
    file = MappedFile(path, len(CONTENT))
    os.truncate(path, 100)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))} was cut off .*: it had 10496 bytes and has 100$"):
        file[5000:5001]


def test_a_file_of_another_size_is_not_mapped_again(path):
    pickled = pickle.dumps(MappedFile(path, len(CONTENT)))
    path.write_bytes(CONTENT + b"more")
    with pytest.raises(InputError, match="changed while it was read: it had 10496 bytes and has 10500$"):
        pickle.loads(pickled)
    path.unlink()
    with pytest.raises(InputError, match="No such file or directory$"):
        pickle.loads(pickled)


def test_a_file_without_bytes_or_with_too_many_is_an_error(path):
    with pytest.raises(InputError, match="10496 bytes; it may have at most 10495$"):
        MappedFile(path, len(CONTENT) - 1)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="data: the file is empty$"):
        MappedFile(path, 7)
