"""Downloads that leave nothing behind when they fail."""

import contextlib
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.errors import InputError


@contextlib.contextmanager
def directory_for_download(parent: Path, argument: str = "data_dir") -> Iterator[Path]:
    """A new directory inside `parent`, from where a finished file is moved to its place by a rename.

    It is removed at the end, and so is `parent` if it was made for this and nothing was moved into it.

    Args:
        parent: where the finished file belongs.
        argument: the name under which the caller was given `parent`, for the error.

    Raises:
        InputError: `parent` cannot be written.
    """
    is_new = not parent.exists()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        directory = tempfile.TemporaryDirectory(prefix="download-", dir=parent)
    except OSError as error:
        raise InputError(f"{argument} is {parent}; it must be a directory that can be written ({error})") from error
    try:
        with directory as path:
            yield Path(path)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # not empty: the download succeeded
                parent.rmdir()


def fetch(url: str, *, timeout: float) -> bytes:
    """What a web address gives, whole.

    Args:
        url: the address, of something that fits into memory.
        timeout: seconds to wait for the connection, and then for each piece.

    Raises:
        OSError: nothing can be reached, in time or at all, or the server refuses.
        http.client.HTTPException: the answer breaks off, or is none.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return response.read()
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection, which nobody reads to its end
        raise


def in_one_line(error: Exception) -> str:
    """What an error of the network says; servers' answers that it quotes may hold line breaks."""
    return " ".join(str(error).split())
