"""Directories are replaced atomically: after a kill at any moment, a reader finds the old or the new content."""

import os
from pathlib import Path

import pytest

from transformer_jax import InputError, load_run
from transformer_jax.outside_files import left_of, replacing

CHANGES = ("mkdir", "rename", "replace", "rmdir", "unlink")  # functions of `os` through which all changes go
FILES = ("a", "b")


class Killed(BaseException):
    """Simulates the death of this process."""


def names_of(directory: Path) -> set[str]:
    return {*FILES} if (directory / "a").exists() else set()


def write(directory: Path, content: str) -> None:
    with replacing(directory, "a and b", names_of, frozenset(("theirs",))) as new:
        for name in FILES:
            (new / name).write_text(content)
            os.rename(new / name, new / name)  # a moment between the files


def killed(directory: Path, moment: int, content: str) -> bool:
    """Kill the process at the given change of the disk, and return whether it was killed."""
    number = -1

    def stopping(change):
        def counted(*arguments, **options):
            nonlocal number
            number += 1
            if number >= moment:
                raise Killed
            return change(*arguments, **options)

        return counted

    with pytest.MonkeyPatch.context() as patched:
        for name in CHANGES:
            patched.setattr(os, name, stopping(getattr(os, name)))
        try:
            write(directory, content)
        except Killed:
            return True
    return False


def found(directory: Path) -> list[str]:
    place = directory if directory.exists() else left_of(directory)
    return [(place / name).read_text() for name in FILES if (place / name).exists()]


@pytest.mark.parametrize("before", [[], ["old", "old"]])
def test_a_kill_leaves_the_earlier_or_the_new_content_and_the_next_call_writes(before, tmp_path):
    seen = []
    for moment in range(99):
        directory = tmp_path / str(moment) / "lr[1e-3]"
        if before:
            write(directory, "old")
            (directory / "theirs").write_text("theirs")
        if not killed(directory, moment, "new"):
            break
        seen.append(found(directory))
        assert seen[-1] in (before, ["new", "new"])
        write(directory, "next")
        assert found(directory) == ["next", "next"]
        assert (directory / "theirs").exists() == bool(before)
        assert not left_of(directory).exists()
    assert 8 < moment < 99
    assert before in seen
    assert ["new", "new"] in seen


def test_beside_another_file_nothing_is_changed(tmp_path):
    write(tmp_path / "a", "old")
    (tmp_path / "a" / "notes").write_text("theirs")
    with pytest.raises(InputError, match=r"directory is .*a, which holds notes; it must be empty, or hold a and b$"):
        write(tmp_path / "a", "new")
    assert found(tmp_path / "a") == ["old", "old"]


def test_an_error_leaves_the_earlier_content_and_no_trace(tmp_path):
    write(tmp_path / "a", "old")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "rename", lambda *_: os.write(-1, b"half"))  # after the first file
        with pytest.raises(InputError, match="directory is .*a; it must be a directory that can be written"):
            write(tmp_path / "a", "new")
    assert found(tmp_path / "a") == ["old", "old"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_the_working_directory_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"directory is \., the working directory"):
        load_run("reverse").save(".")


def test_a_directory_with_digests_of_other_files_is_left_alone(tmp_path):
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "image").write_text("theirs")
    (tmp_path / "downloads" / "SHA256SUMS").write_text(f"{'0' * 64}  image\n")
    with pytest.raises(InputError, match="downloads, which holds SHA256SUMS; it must be empty, or hold"):
        load_run("reverse").save(tmp_path / "downloads")
    assert (tmp_path / "downloads" / "image").read_text() == "theirs"


def test_a_model_is_opened_also_between_the_two_renames_that_replace_it(tmp_path):
    load_run("reverse").save(tmp_path / "model")
    expected = load_run(tmp_path / "model").params["input_layer"]["kernel"]
    (tmp_path / "model").rename(left_of(tmp_path / "model"))
    assert (load_run(tmp_path / "model").params["input_layer"]["kernel"] == expected).all()
    load_run(tmp_path / "model").save(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
