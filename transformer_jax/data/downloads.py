"""Downloads that leave no partial file when they fail."""

import http.client
import urllib.error
import urllib.request
from pathlib import Path

from transformer_jax.errors import InputError, in_one_line
from transformer_jax.outside_files import write_whole


def download(url: str, target: Path, what: str, *, more: str = "") -> None:
    """Download a URL to a file, atomically; the file's directory is created if it does not exist.

    Args:
        url: `https:`, `http:` or `file:`.
        target: path of the file.
        what: name of the content, for the error message.
        more: alternatives to putting the file there by hand, for the error message.

    Raises:
        InputError: the server cannot be reached, times out, or returns an error; the response is
            incomplete, or not HTTP; or the file cannot be written.
    """
    try:
        with urllib.request.urlopen(url, timeout=60.0) as response:
            content = response.read()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)
    # ValueError: a NUL in the path
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # the error holds the open connection
        raise InputError(
            f"{what} could not be downloaded from {url} ({in_one_line(error)}); put the file at"
            f" {target} by hand{more}"
        ) from error
