"""Downloads that leave nothing behind when they fail."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.errors import InputError


@contextlib.contextmanager
def directory_for_download(parent: Path) -> Iterator[Path]:
    """A new directory inside `parent`, from where a finished file is moved to its place by a rename.

    It is removed at the end, and so is `parent` if it was made for this and nothing was moved into it.

    Raises:
        InputError: `parent` cannot be written.
    """
    is_new = not parent.exists()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        directory = tempfile.TemporaryDirectory(prefix="download-", dir=parent)
    except OSError as error:
        raise InputError(f"data_dir is {parent}; it must be a directory that can be written ({error})") from error
    try:
        with directory as path:
            yield Path(path)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # not empty: the download succeeded
                parent.rmdir()


def in_one_line(error: Exception) -> str:
    """What an error of the network says; servers' answers that it quotes may hold line breaks."""
    return " ".join(str(error).split())
