"""Downloads that leave no partial file when they fail."""

import urllib.error
import urllib.request
from pathlib import Path


def download(url: str, target: Path, *, timeout: float = 60.0, max_bytes: int = 2**30) -> None:
    """Write a URL's content to a file, whole or not at all; the file's directory is made if it does not exist.

    Args:
        url: `https:`, `http:` or `file:`.
        target: path of the file.
        timeout: seconds to wait for the connection, and then for each block of data.
        max_bytes: the longest content that is taken; no more of a longer one is read.

    Raises:
        OSError: the server cannot be reached, does not answer in time, or answers with an error, or with more than
            `max_bytes`; or the file cannot be written.
        http.client.HTTPException: the answer breaks off, or is not HTTP.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            content = response.read(max_bytes + 1)
            if len(content) > max_bytes:
                raise OSError(f"the answer has more than {max_bytes} bytes")
            response.read()  # nothing, or the error of an answer that broke off
    except urllib.error.HTTPError as error:
        error.close()  # the error holds the open connection
        raise
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.unfinished")
    temporary.write_bytes(content)
    temporary.replace(target)
