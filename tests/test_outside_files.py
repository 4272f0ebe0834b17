"""Untrusted files: a bad file is a one-line error, raised before any of its contents are used."""

import json
import os
import zipfile

import pytest

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file

MAX_BYTES = 4099


def read_json(path):
    with outside_file(path, "JSON", MAX_BYTES) as file:
        return json.loads(file.read_bytes())


def archive(path, compression: int, num_bytes: int = 1009) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr("a.npy", bytes(num_bytes))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "f can't be read: No such file or directory"),
        (os.mkdir, "f is a directory; it must be a regular file"),
        (os.mkfifo, "f is a pipe, a socket or a device; it must"),
        (lambda path: path.write_bytes(b""), "f is empty"),
        (lambda path: path.write_bytes(bytes(MAX_BYTES + 1)), "f has 4100 bytes; it may have at most 4099"),
        (lambda path: path.write_text('{"a":\n1'), "f is not JSON, or damaged: JSONDecodeError: Expecting ',' delim"),
        (lambda path: path.write_bytes(b"\xff"), "f is not JSON, or damaged: UnicodeDecodeError"),
        (lambda path: path.write_text("[" * MAX_BYTES), "f is not JSON, or damaged: (RecursionError|JSONDecodeError)"),
        (lambda path: path.write_bytes(b"PK\x03\x04" + bytes(97)), "f is not JSON, or damaged: BadZipFile"),
        (lambda path: archive(path, zipfile.ZIP_BZIP2), "f has an entry that is neither stored nor deflated"),
        (lambda path: archive(path, zipfile.ZIP_DEFLATED, 10**6), "f has 1000000 bytes when unpacked; it may have"),
    ],
)
def test_any_other_file_is_one_line(tmp_path, make, message):
    make(tmp_path / "f")
    with pytest.raises(InputError, match=message) as caught:
        read_json(tmp_path / "f")
    assert "\n" not in str(caught.value)


def test_a_path_that_no_file_can_have_is_one_line():
    for name in ("a\0b", "\udcff", "x" * 5000):
        with pytest.raises(InputError):
            read_json(name)


def test_a_deflated_entry_of_more_than_it_claims_is_one_line(tmp_path):
    archive(tmp_path / "f", zipfile.ZIP_DEFLATED)
    content = bytearray((tmp_path / "f").read_bytes())
    place = content.rfind(b"PK\x01\x02") + 24  # of the unpacked size in the archive's directory
    content[place : place + 4] = (7).to_bytes(4, "little")
    (tmp_path / "f").write_bytes(content)
    message = pytest.raises(InputError, match="f is not a zip, or damaged: BadZipFile: Bad CRC-32")
    with message, outside_file(tmp_path / "f", "a zip", MAX_BYTES) as path, zipfile.ZipFile(path) as file:
        file.read("a.npy")


def test_a_regular_file_is_read_and_an_error_of_the_caller_itself_passes(tmp_path):
    (tmp_path / "f").write_text("3")
    assert read_json(tmp_path / "f") == read_json(str(tmp_path / "f")) == 3
    with pytest.raises(InputError, match="^three$"), outside_file(tmp_path / "f", "JSON", MAX_BYTES):
        raise InputError("three")
