"""Files of data are regular files of a size that fits; anything else is refused in one line, without waiting."""

import os
import re
import socket
from pathlib import Path

import pytest

from transformer_jax.errors import InputError
from transformer_jax.tasks.data_files import read_data_file
from transformer_jax.tasks.translation.pairs_in_file import read_pairs


def strange(directory: Path, kind: str) -> Path:
    """The path of something that is no file of data."""
    path = directory / "data"
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        case "device":
            path = Path("/dev/zero")
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "link to itself":
            path.symlink_to(path)
        case "directory":
            path.mkdir()
        case "too large":
            with path.open("wb") as file:
                file.truncate(2**41)
        case "overlong":
            path = directory / ("a" * 256)
        case "overlong as a whole":
            path = directory / ("a/" * 3000)
        case "not UTF-8":
            path = directory / "a\udcff"
        case "NUL":
            path = directory / "a\0b"
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "No such file or directory"),
        ("FIFO", "not a regular file; pipes, sockets and devices are not read"),
        ("socket", "not a regular file; pipes, sockets and devices are not read"),
        ("device", "not a regular file; pipes, sockets and devices are not read"),
        ("link to a device", "not a regular file; pipes, sockets and devices are not read"),
        ("link to itself", "Too many levels of symbolic links"),
        ("directory", "Is a directory"),
        ("too large", "2199023255552 bytes; it may have at most 1099511627776"),
        ("overlong", "File name too long"),
        ("overlong as a whole", "File name too long"),
        ("not UTF-8", "No such file or directory"),
        ("NUL", "embedded null byte"),
    ],
)
def test_what_is_no_file_of_data_is_refused(tmp_path, kind, message):
    path = strange(tmp_path, kind)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}: {message}$"):
        read_pairs(path)


def test_a_file_of_the_system_that_claims_no_size_has_no_content():
    assert read_data_file(Path("/proc/self/maps"), 7) == b""


def test_a_file_may_have_as_many_bytes_as_said(tmp_path):
    (tmp_path / "data").write_bytes(b"content")
    assert read_data_file(tmp_path / "data", 7) == b"content"
    with pytest.raises(InputError, match="7 bytes; it may have at most 6"):
        read_data_file(tmp_path / "data", 6)
