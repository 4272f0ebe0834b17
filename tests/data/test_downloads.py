"""Downloads: whole or not at all, and no directory left behind by one that failed."""

import http.client

import pytest
from local_server import UNREACHABLE, serve

from transformer_jax import InputError
from transformer_jax.data.downloads import directory_for_download, fetch, in_one_line


def test_a_finished_file_stays_and_the_temporary_directory_does_not(tmp_path):
    parent = tmp_path / "new" / "data"
    with directory_for_download(parent) as temporary:
        assert temporary.parent == parent
        (temporary / "part").write_text("rest")
        (temporary / "file").write_text("content")
        (temporary / "file").rename(parent / "file")
    assert [path.name for path in parent.iterdir()] == ["file"]
    assert (parent / "file").read_text() == "content"


@pytest.mark.parametrize("exists", [False, True])
def test_a_failed_download_leaves_everything_as_it_was(tmp_path, exists):
    parent = tmp_path / "data"
    if exists:
        parent.mkdir()

    def fail() -> None:
        with directory_for_download(parent) as temporary:
            (temporary / "part").write_text("half")
            raise ConnectionError

    with pytest.raises(ConnectionError):
        fail()
    assert parent.exists() == exists
    assert not exists or not list(parent.iterdir())


def test_a_parent_that_cannot_be_written_is_an_error_that_names_the_argument(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match=r"cache_dir is .*file; it must be a directory that can be written"),
        directory_for_download(tmp_path / "file", "cache_dir"),
    ):
        pass


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


@pytest.mark.parametrize("name", ["a" * 256, "a/" * 3000, "a\0b"])
def test_a_parent_of_an_impossible_name_is_an_error_that_names_the_argument(tmp_path, name):
    with (
        pytest.raises(InputError, match="it must be a directory that can be written"),
        directory_for_download(tmp_path / name),
    ):
        pass
