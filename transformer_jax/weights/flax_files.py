"""Flax's files of parameters: maps in msgpack, whose leaves are arrays.

Flax's own reader believes the sizes that a file claims, and puts no bound on nested and empty maps, which take a byte
in the file and a hundred in memory.
"""

import math
from typing import Any

import jax.numpy as jnp
import msgpack  # type: ignore[import-untyped]
import numpy as np

from transformer_jax.errors import InputError

MAX_ENTRIES = 100_000  # of all maps together
MAX_ENTRIES_OF_ONE = 5_000
MAX_KEY = 300  # characters
MAX_DEPTH = 64
MAX_DIMENSIONS = 32
ARRAY = 1  # Flax's number of this extension of msgpack

DTYPES: dict[bytes, np.dtype[Any]] = {
    b"bfloat16": np.dtype(jnp.bfloat16),
    **{
        name.encode(): np.dtype(name)
        for name in (
            *("float16", "float32", "float64", "complex64", "complex128", "bool"),
            *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        )
    },
}


def read_tree(content: bytes) -> dict[str, Any]:
    """The leaves of a Flax file by path, its keys joined by "/"; empty maps are left out.

    Arrays of more than a gigabyte, which Flax writes in pieces, are not put together.

    Raises:
        InputError: an array claims another size than it has, or the file has too many entries.
        Exception: the file is damaged; of any class.
    """
    left = MAX_ENTRIES

    def counted(entries: list[tuple[Any, Any]]) -> dict[str, Any]:
        nonlocal left
        left -= 1 + len(entries)
        if left < 0:
            raise InputError(f"has more than {MAX_ENTRIES} entries, too many for a file of weights")
        return dict(entries)

    tree = msgpack.unpackb(
        content,
        raw=False,
        ext_hook=_array,
        object_pairs_hook=counted,
        strict_map_key=True,
        max_str_len=MAX_KEY,
        max_map_len=MAX_ENTRIES_OF_ONE,
        max_array_len=0,
    )
    leaves: dict[str, Any] = {}
    _collect(tree, (), leaves)
    return leaves


def _collect(tree: dict[str, Any], path: tuple[str, ...], leaves: dict[str, Any]) -> None:
    if len(path) > MAX_DEPTH:
        raise ValueError("the maps are nested too deeply")
    for key, value in tree.items():
        if isinstance(value, dict):
            _collect(value, (*path, str(key)), leaves)
        else:
            leaves["/".join((*path, str(key)))] = value


def _array(code: int, data: bytes) -> np.ndarray:
    """An array: its shape, the name of its type, and its bytes, in msgpack."""
    if code != ARRAY:
        raise InputError(f"holds an object of msgpack's extension {code}; it must hold arrays only")
    shape, name, numbers = msgpack.unpackb(data, raw=True, max_array_len=MAX_DIMENSIONS, max_map_len=0, max_ext_len=0)
    if name not in DTYPES:
        raise InputError(f"holds an array of type {str(name)[:40]}; it must hold arrays of numbers")
    dtype = DTYPES[name]
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ValueError("a shape is not made of sizes")
    if math.prod(shape) * dtype.itemsize != len(numbers):
        raise InputError(f"claims an array of shape {shape} and type {dtype} in {len(numbers)} bytes")
    return np.frombuffer(numbers, dtype).reshape(shape)
