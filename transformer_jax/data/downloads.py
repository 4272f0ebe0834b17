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
    is_new = False
    try:
        is_new = not parent.exists()  # an error if the path is too long
        parent.mkdir(parents=True, exist_ok=True)
        directory = tempfile.TemporaryDirectory(prefix="download-", dir=parent)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"{argument} is {parent}; it must be a directory that can be written ({error})") from error
    try:
        with directory as path:
            yield Path(path)
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # not empty: the download succeeded
                parent.rmdir()


def fetch(url: str, *, timeout: float, max_bytes: int = 2**30) -> bytes:
    """Read a URL's content into memory.

    Args:
        url: `https:`, `http:` or `file:`.
        timeout: seconds to wait for the connection, and then for each block of data.
        max_bytes: the longest content that is taken; no more of a longer one is read.

    Raises:
        OSError: the server cannot be reached, does not answer in time, or answers with an error, or with more than
            `max_bytes`.
        http.client.HTTPException: the answer breaks off, or is not HTTP.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content: bytes = response.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise OSError(f"the answer has more than {max_bytes} bytes")
            content += response.read()  # nothing, or the error of an answer that broke off
            return content
    except urllib.error.HTTPError as error:
        error.close()  # the error holds the open connection
        raise


def in_one_line(error: Exception, *, with_class: bool = False, length: int = 300) -> str:
    """The beginning of an error's message without line breaks, which a server's answer that it quotes may contain."""
    message = " ".join(f"{type(error).__name__ + ': ' if with_class else ''}{error}".split())
    return message if len(message) <= length else f"{message[:length]}…"
