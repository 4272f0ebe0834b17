"""Downloads: whole or not at all."""

import pytest
from local_server import UNREACHABLE, serve

from transformer_jax.data.downloads import download
from transformer_jax.errors import InputError, in_one_line


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "data" / "file"
    pages = {"/whole": b"content", "/half": (b"content", 3), "/nonsense": None}
    with serve(pages) as (address, _):
        for url, message in (
            (f"{address}/half", "IncompleteRead"),
            (f"{address}/nonsense", "nonsense"),
            (f"{address}/missing", "404"),
            (UNREACHABLE, "refused"),
        ):
            with pytest.raises(InputError, match=f"^it could not be downloaded from .*{message}.*; put the file at"):
                download(url, target, "it")
            assert list(tmp_path.iterdir()) == []
        download(f"{address}/whole", target, "it")
    assert target.read_bytes() == b"content"
    assert list(target.parent.iterdir()) == [target]


def test_an_error_of_several_lines_is_shown_in_one():
    assert in_one_line(OSError("not\r\n found,\n at all")) == "not found, at all"
