"""Downloads: whole or not at all, and no directory left behind by one that failed."""

import http.client

import pytest
from local_server import UNREACHABLE, serve

from transformer_jax.data.downloads import download, fetch, in_one_line


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "new" / "data" / "file"
    with serve({"/whole": b"content", "/half": (b"content", 3)}) as (address, _):
        with pytest.raises(http.client.HTTPException):
            download(f"{address}/half", target, timeout=5.0)
        assert list(tmp_path.iterdir()) == []
        download(f"{address}/whole", target, timeout=5.0)
    assert target.read_bytes() == b"content"
    assert list(target.parent.iterdir()) == [target]


def test_content_is_read_whole_or_not_at_all():
    with serve({"/whole": b"content", "/half": (b"content", 3), "/nonsense": None}) as (address, _):
        assert fetch(f"{address}/whole", timeout=5.0) == b"content"
        for page in ("half", "nonsense"):
            with pytest.raises(http.client.HTTPException):
                fetch(f"{address}/{page}", timeout=5.0)
        with pytest.raises(OSError, match="404"):
            fetch(f"{address}/missing", timeout=5.0)
    with pytest.raises(OSError, match="refused"):
        fetch(UNREACHABLE, timeout=5.0)


def test_an_error_of_several_lines_is_shown_in_one():
    assert in_one_line(OSError("not\r\n found,\n at all")) == "not found, at all"


def test_a_longer_answer_than_expected_is_not_read_to_its_end():
    with serve({"/page": b"content"}) as (address, _):
        assert fetch(f"{address}/page", timeout=5.0, max_bytes=7) == b"content"
        with pytest.raises(OSError, match="the answer has more than 6 bytes"):
            fetch(f"{address}/page", timeout=5.0, max_bytes=6)
    with pytest.raises(OSError, match="the answer has more than 6 bytes"):
        fetch("file:///dev/zero", timeout=5.0, max_bytes=6)
