"""Arrays from `.npz` and `.npy` files that may come from anywhere: no code is run, and no claimed size is believed."""

import io
import re
import zipfile
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.downloads import in_one_line
from transformer_jax.errors import InputError
from transformer_jax.tasks.data_files import read_data_file

MAX_BYTES = 2**28  # of an array, and of a file but for its directory; the features of CIFAR-100 take 205 MB in float64
DIRECTORY_BYTES = 2**20
HEADER_BYTES = 2**16 + 10  # of an `.npy`, at most
MAGIC = b"\x93NUMPY\x01\x00"  # of a plain array; the later versions are for longer headers

# As NumPy writes it. NumPy's own reader evaluates the header as Python, which a deep one makes fail in many ways.
HEADER = re.compile(
    rb"\{'descr': '([<>|][fiubU]\d{1,5})', 'fortran_order': (False|True), "
    rb"'shape': \(((?:\d{1,12}, ?)*(?:\d{1,12})?)\), \} *\n"
)


def read_npz(path: Path, wanted: str, optional: Collection[str] = ()) -> dict[str, np.ndarray]:
    """Arrays of an `.npz`, by key.

    Args:
        path: of the file.
        wanted: a key that the file must have.
        optional: further keys that are read if the file has them; all others are left alone.

    Raises:
        InputError: the file cannot be read, lacks the key, is damaged, too large, or holds anything but plain arrays.
    """
    try:
        content = read_data_file(path, MAX_BYTES + DIRECTORY_BYTES)
        if content.startswith(MAGIC):
            raise InputError(f"{path} holds a single array; it must be an .npz with the key {wanted}")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if wanted not in members:
                raise InputError(f"{path} has the keys {_listed(members)}; it must have the key {wanted}")
            names = [name for name in (wanted, *optional) if name in members]
            return {name: as_array(_read_member(archive, members[name])) for name in names}
    except InputError:
        raise
    except Exception as error:  # damaged bytes make zipfile raise errors of many classes
        raise InputError(
            f"{path} must be an .npz of plain arrays, whole and not pickled ({in_one_line(error)})"
        ) from error


class Header(NamedTuple):
    """Header of an `.npy` file, and where the elements begin."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    start: int  # bytes before the first element


def read_header(content: bytes, size: int) -> Header:
    """The header of an `.npy` file.

    Args:
        content: the first `HEADER_BYTES` of the file, or more.
        size: bytes in the whole file.

    Raises:
        ValueError: the content is no plain array's, or the file not as long as its header says.
    """
    start = len(MAGIC) + 2 + int.from_bytes(content[len(MAGIC) : len(MAGIC) + 2], "little")
    header = HEADER.fullmatch(content[len(MAGIC) + 2 : start])
    if not (content.startswith(MAGIC) and header):
        raise ValueError("the header of an array is damaged, or of objects that are no numbers")
    dtype = np.dtype(header[1].decode())
    shape = tuple(int(length) for length in header[3].split(b",") if length.strip())
    if (expected := prod(shape) * dtype.itemsize) != size - start:
        raise ValueError(f"an array of the shape {list(shape)} has {expected} bytes; there are {size - start}")
    return Header(dtype, shape, header[2] == b"True", start)


def as_array(content: bytes) -> np.ndarray:
    """The array that an `.npy` file holds; it shares the memory of `content`.

    Raises:
        ValueError: as `read_header`.
    """
    header = read_header(content, len(content))
    elements = np.frombuffer(content, header.dtype, offset=header.start)
    return elements.reshape(header.shape, order="F" if header.is_fortran else "C")


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > MAX_BYTES:
        raise ValueError(f"{info.filename} has {info.file_size} bytes; it may have at most {MAX_BYTES}")
    return archive.read(info)


def _listed(names: Collection[str], most: int = 5) -> str:
    shown = [name[:60] for name in names]
    return f"{shown[:most]}" + (f" and {len(shown) - most} more" if len(shown) > most else "")
