"""PyTorch's files: a zip archive with a pickle and the tensors' numbers, or before version 1.6 the two in a row.

Nothing is allocated that the file does not hold: every size that it claims is compared with the bytes that are there.
"""

import functools
import io
import math
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.weights.torch_pickle import MAX_BYTES, Storage, Tensor, interpret

MAX_ENTRIES = 100_000  # of an archive
MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001  # the first two pickles of a file before version 1.6

Numbers = Callable[[Storage], bytes | memoryview]  # the content of a storage, whose size has been checked


def read_saved(content: bytes) -> tuple[Any, Numbers]:
    """The object that was saved, with descriptions in the place of tensors, and a function that finds their numbers.

    Raises:
        InputError: the file holds other objects, or is compressed.
        Exception: it is damaged; of any class.
    """
    return _read_zip(content) if content.startswith(b"PK") else _read_before_zip(content)


def array_of_tensor(name: str, tensor: Tensor, numbers: Numbers) -> np.ndarray:
    """A view of the tensor's numbers.

    Raises:
        InputError: numbers are used twice, by a stride of 0 for example, or lie outside of the storage.
    """
    storage, itemsize = tensor.storage, tensor.storage.dtype.itemsize
    claimed = math.prod(tensor.shape)
    if claimed > storage.size or _overlaps(tensor):
        raise InputError(
            f"claims {claimed} numbers for {name!r}, some of them in one place; every number must be in the file"
        )
    data = numbers(storage)
    if not claimed:
        return np.empty(tensor.shape, storage.dtype)
    strides = [stride * itemsize for stride in tensor.strides]
    return np.ndarray(tensor.shape, storage.dtype, data, tensor.offset * itemsize, strides)


def _overlaps(tensor: Tensor) -> bool:
    """Whether two elements may share a number: each stride has to step over all elements of the smaller strides."""
    reached = 1
    for stride, size in sorted(zip(tensor.strides, tensor.shape, strict=True)):
        if size > 1:
            if stride < reached:
                return True
            reached = stride * size
    return False


def _read_zip(content: bytes) -> tuple[Any, Numbers]:
    if content.count(b"PK\x01\x02") > MAX_ENTRIES:  # before the list of entries is made
        raise InputError(f"is an archive of more than {MAX_ENTRIES} entries, too many for a file of weights")
    archive = zipfile.ZipFile(io.BytesIO(content))
    entries = archive.infolist()
    if any(entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size for entry in entries):
        raise InputError("is a compressed archive; torch.save stores the numbers as they are, and only that is read")
    if sum(entry.file_size for entry in entries) > len(content):
        raise InputError("is an archive whose entries claim more bytes than it has")
    records = {entry.filename.partition("/")[2]: entry for entry in entries}
    if len(records) < len(entries):
        raise ValueError("two entries have one name")
    if "byteorder" in records and archive.read(records["byteorder"]) != b"little":
        raise InputError("holds big-endian numbers; they must be little-endian")
    if records["data.pkl"].file_size > MAX_BYTES:
        raise InputError(f"has a pickle of more than {MAX_BYTES} bytes, too many for a file of weights")

    @functools.cache
    def numbers(storage: Storage) -> bytes:
        entry = records[f"data/{storage.key}"]
        if entry.file_size != storage.size * storage.dtype.itemsize:
            raise InputError(f"claims {storage.size} numbers of type {storage.dtype} in {entry.file_size} bytes")
        return archive.read(entry)

    return interpret(io.BytesIO(archive.read(records["data.pkl"])))[0], numbers


def _read_before_zip(content: bytes) -> tuple[Any, Numbers]:
    stream = io.BytesIO(content[:MAX_BYTES])
    if (interpret(stream)[0], interpret(stream)[0]) != (MAGIC, PROTOCOL):
        raise ValueError("the magic number is missing")
    if interpret(stream)[0]["little_endian"] is not True:
        raise InputError("holds big-endian numbers; they must be little-endian")
    saved, storages = interpret(stream)
    keys, _ = interpret(stream)
    position, found = stream.tell(), {}
    for key in keys:  # of each: the count of numbers in eight bytes, and the numbers
        size = int.from_bytes(content[position : position + 8], "little")
        end = position + 8 + size * storages[key].dtype.itemsize
        if size != storages[key].size or end > len(content):
            raise ValueError("a storage is truncated")
        found[key] = memoryview(content)[position + 8 : end]
        position = end
    return saved, lambda storage: found[storage.key]
