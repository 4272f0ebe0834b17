"""Downloads that leave no partial file when they fail."""

import contextlib
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from transformer_jax.errors import InputError


@contextlib.contextmanager
def directory_for_download(parent: Path, argument: str = "data_dir") -> Iterator[Path]:
    """A temporary directory inside `parent`: download into it, then rename the finished file into `parent`.

    The directory is removed on exit. `parent` is created if it does not exist, and removed again if it stays empty.

    Args:
        parent: directory of the finished file; on the same file system, so that the rename is atomic.
        argument: name of the caller's argument that gave `parent`, for the error message.

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
    """Read a URL's content into memory.

    Args:
        url: `https:`, `http:` or `file:`.
        timeout: seconds to wait for the connection, and then for each block of data.

    Raises:
        OSError: the server cannot be reached, does not answer in time, or answers with an error.
        http.client.HTTPException: the answer breaks off, or is not HTTP.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content: bytes = response.read()
            return content
    except urllib.error.HTTPError as error:
        error.close()  # the error holds the open connection
        raise


def in_one_line(error: Exception) -> str:
    """The message of a network error without line breaks, which a quoted answer of the server may contain."""
    return " ".join(str(error).split())
