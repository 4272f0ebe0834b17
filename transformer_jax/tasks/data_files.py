"""Files of data, read whole: regular files of a size that fits, and no pipe or device that never ends."""

import os
import stat
from errno import EISDIR
from pathlib import Path

from transformer_jax.errors import InputError


def file_size(path: Path, max_bytes: int) -> int:
    """The size of a regular file in bytes.

    Raises:
        InputError: there is none, it is no regular file, or larger than `max_bytes`.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR))
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path}: not a regular file; pipes, sockets and devices are not read")
    if status.st_size > max_bytes:
        raise InputError(f"{path}: {status.st_size} bytes; it may have at most {max_bytes}")
    return status.st_size


def read_data_file(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file.

    Raises:
        InputError: it cannot be read, is no regular file, or is larger than `max_bytes`.
    """
    size = file_size(path, max_bytes)
    try:
        with path.open("rb") as file:
            return file.read(size)  # files of the system claim 0 bytes, and may never end
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
