"""A table of features in a file that may be larger than memory: rows are read when they are asked for."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.data.downloads import in_one_line
from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.array_files import HEADER_BYTES, read_header
from transformer_jax.tasks.mapped_file import MappedFile

MAX_FILE_BYTES = 2**44  # of a table
BLOCK_BYTES = 2**24  # in float32, of the rows that are read at once where all are read


class MappedRows:
    """The rows of a mapped `.npy` file `[N, F]` of floating-point numbers, as float32.

    Args:
        file: mapped; a worker process maps it again.

    Raises:
        InputError: the file holds anything but `[N, F]` of a floating-point type, N and F at least 1.
    """

    dtype = np.dtype(np.float32)

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self._rows = array_in(file)
        if self._rows.ndim != 2 or not self._rows.size:
            raise InputError(f"{file.path} has the shape {list(self._rows.shape)}; it must be [images, features]")
        if self._rows.dtype.kind != "f":
            raise InputError(f"{file.path} has the type {self._rows.dtype}; it must be a floating-point type")
        self.shape = self._rows.shape
        self.nbytes = self._rows.size * self.dtype.itemsize  # as float32

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, index: int | slice | Int[np.ndarray, "..."]) -> Float[np.ndarray, "... F"]:
        """Some rows; those at an array of indices are a copy.

        Raises:
            InputError: the file is shorter now.
        """
        self.file.check()
        with np.errstate(over="ignore"):  # too large for float32: infinity, which `open_rows` refuses
            return self._rows[index].astype(self.dtype, order="C", copy=False)

    def blocks(self) -> Iterator[Float[np.ndarray, "_ F"]]:
        """All rows, some at a time."""
        size = max(1, BLOCK_BYTES // (self.shape[1] * self.dtype.itemsize))
        for start in range(0, len(self), size):
            yield self[start : start + size]

    def whole(self) -> Float[np.ndarray, "N F"]:
        """All rows in memory."""
        table, start = np.empty(self.shape, self.dtype), 0
        for block in self.blocks():
            table[start : start + len(block)] = block
            start += len(block)
        return table

    def __reduce__(self) -> tuple[type["MappedRows"], tuple[MappedFile]]:
        return MappedRows, (self.file,)


def array_in(file: MappedFile) -> np.ndarray:
    """The array of a mapped `.npy` file, as a view of the map: call `file.check` before its elements are read.

    Raises:
        InputError: the file is no plain array's, or not as long as its header says.
    """
    try:
        header = read_header(file[:HEADER_BYTES], len(file))
    except (ValueError, TypeError) as error:  # TypeError: a type that NumPy does not know
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file.path} must be an .npy of a plain array, whole ({in_one_line(error)})") from error
    return file.array(header.dtype, header.shape, header.start, is_fortran=header.is_fortran)


def open_rows(path: Path) -> MappedRows:
    """The features in an `.npy` file, after all of them were looked at once.

    Raises:
        InputError: the file cannot be read, is no regular file, or holds anything but finite `[N, F]`.
    """
    rows = MappedRows(MappedFile(path, MAX_FILE_BYTES))
    if num_bad := sum(np.count_nonzero(~np.isfinite(block).all(axis=1)) for block in rows.blocks()):
        raise InputError(
            f"{path} has NaN, infinity or a number beyond float32 in {num_bad} of {len(rows)} rows; all must be finite"
        )
    return rows


def in_memory(features: Float[np.ndarray, "N F"] | MappedRows) -> Float[np.ndarray, "N F"]:
    """The whole table, as an array."""
    return features.whole() if isinstance(features, MappedRows) else features
