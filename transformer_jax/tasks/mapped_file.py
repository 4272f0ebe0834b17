"""Files of data that are mapped: of a file larger than memory only what is asked for is read."""

import mmap
import os
from pathlib import Path
from typing import Any

from transformer_jax.errors import InputError
from transformer_jax.tasks.data_files import file_size


class MappedFile:
    """The bytes of a regular file, mapped for reading.

    A worker process gets the path, not the bytes, and maps the file again. The system ends a process that reads behind
    the end of a file that was cut off; each read therefore compares the file's size first.

    Args:
        path: of the file.
        max_bytes: that it may have.

    Raises:
        InputError: the file cannot be read, is no regular file, empty, or larger than `max_bytes`.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path = path
        self._absolute = path.absolute()  # a worker may begin in another directory
        self._size = file_size(path, max_bytes)
        self._map = self._mapped()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        """A copy of some bytes.

        Raises:
            InputError: the file is shorter now.
        """
        self.check()
        return self._map[part]

    def check(self) -> None:
        """Raise an `InputError` if the file is shorter than when it was opened."""
        if (size := self._map.size()) < self._size:
            raise InputError(f"{self.path} was cut off while it was read: it had {self._size} bytes and has {size}")

    def _mapped(self) -> mmap.mmap:
        try:
            with self._absolute.open("rb") as file:
                if (size := os.fstat(file.fileno()).st_size) != self._size:
                    raise InputError(f"{self.path} changed while it was read: it had {self._size} bytes and has {size}")
                return mmap.mmap(file.fileno(), self._size, access=mmap.ACCESS_READ)
        except OSError as error:
            raise InputError(f"{self.path}: {error.strerror}") from None
        except ValueError:  # what `mmap` says to 0 bytes; an `InputError` is one too
            if self._size == 0:
                raise InputError(f"{self.path}: the file is empty") from None
            raise

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_map"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._map = self._mapped()
