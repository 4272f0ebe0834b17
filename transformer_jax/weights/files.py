"""Files of weights, Flax's and PyTorch's, read without running any code in them.

The memory that reading takes is bounded by the size of the file, whatever the file claims.
"""

import os
import pickle
import stat
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from transformer_jax.errors import InputError
from transformer_jax.weights.flax_files import read_tree
from transformer_jax.weights.layouts import Arrays
from transformer_jax.weights.torch_files import array_of_tensor, read_saved
from transformer_jax.weights.torch_pickle import Tensor

# First bytes: PyTorch's files are zip archives, or pickles before version 1.6; Flax's are maps in msgpack.
TORCH_BEGINNINGS = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)))
FLAX_BEGINNINGS = tuple(bytes([code]) for code in (*range(0x81, 0x90), 0xDE, 0xDF))

PLAIN = int | float | str | None  # types of the hyperparameters that are kept
MAX_TEXT = 300  # characters in the name of an array and in a hyperparameter


class WeightFile(NamedTuple):
    """Content of a file of weights."""

    arrays: Arrays  # by name; in Flax files a path, its keys joined by "/"
    hyperparameters: dict[str, Any]  # from a PyTorch Lightning checkpoint; empty for other files
    is_torch: bool  # a PyTorch file; otherwise Flax's msgpack


def read_weights(path: str | Path) -> WeightFile:
    """Read a Flax msgpack of parameters, or a PyTorch file of a state dict, bare or as Lightning saves it.

    Raises:
        InputError: the file cannot be read, or `weights_of` refuses it.
    """
    return weights_of(read_regular(path), path)


def read_regular(path: str | Path) -> bytes:
    """The content of a file that is a file: a pipe or a device might never end.

    Raises:
        InputError: it is of another kind, or cannot be read.
    """
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):  # before it is opened, since opening a pipe waits for its writer
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise InputError(f"{path} is {kind}; it must be a file")
        with open(path, "rb") as file:
            return file.read(status.st_size)
    except (OSError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or "it is larger than the memory"
        raise InputError(f"{path} cannot be read ({reason})") from error
    except InputError:
        raise
    except ValueError as error:  # a zero byte in the path, or a lone surrogate
        raise InputError(f"{str(path)!r} cannot be read ({error})") from error


def weights_of(content: bytes, source: str | Path) -> WeightFile:
    """The weights in the content of a file: a Flax msgpack, or a PyTorch file of a state dict, bare or Lightning's.

    The kind is recognized from the content. Only arrays and plain values are read, so that no file can run code.

    Args:
        content: of the file.
        source: name of the file, for error messages.

    Raises:
        InputError: it is of another kind, is damaged, or holds other objects or other amounts than it claims.
    """
    if content.startswith(TORCH_BEGINNINGS):
        kind, read = "PyTorch file", _read_torch
    elif content.startswith(FLAX_BEGINNINGS):
        kind, read = "Flax msgpack", _read_flax
    else:
        kind = "neither a Flax msgpack nor a PyTorch file" if content else "empty"
        raise InputError(f"{source} is {kind}; it must be a file of weights")
    try:
        return read(content)
    except InputError as error:
        raise InputError(f"{source} {error}") from error
    except Exception as error:  # damaged bytes make the readers raise errors of any class
        raise InputError(f"{source} is no {kind} that can be read: truncated, damaged or of another kind") from error


def array_of(value: Any) -> np.ndarray:
    """A tensor or an array as a NumPy array, which may share its memory."""
    import torch

    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    value = value.detach().cpu()
    if value.dtype == torch.bfloat16:  # `Tensor.numpy` lacks it
        return np.asarray(value.float().numpy().astype(jnp.bfloat16))
    return np.asarray(value.numpy())


def _read_flax(content: bytes) -> WeightFile:
    arrays = read_tree(content)
    _check(arrays, np.ndarray)
    return WeightFile(arrays, {}, is_torch=False)


def _read_torch(content: bytes) -> WeightFile:
    saved, numbers = read_saved(content)
    weights = saved.get("state_dict", saved)
    _check(weights, Tensor)
    arrays = {name: array_of_tensor(name, tensor, numbers) for name, tensor in weights.items()}
    if sum(array.nbytes for array in arrays.values()) > len(content):
        raise InputError(f"holds arrays of more bytes than the file's {len(content)}; every number must be in it once")
    hyperparameters = saved.get("hyper_parameters", {}) if weights is not saved else {}
    return WeightFile(arrays, {name: value for name, value in hyperparameters.items() if _is_plain(value)}, True)


def _check(weights: dict[Any, Any], wanted: type) -> None:
    for name, value in weights.items():
        if not (isinstance(name, str) and _is_plain(name)):
            raise InputError(f"has a name that is no text of at most {MAX_TEXT} printable characters")
        if not isinstance(value, wanted):
            raise InputError(f"holds an object of type {type(value).__name__} under {name!r}; it must hold arrays only")


def _is_plain(value: object) -> bool:
    """Whether a value fits into the line of an error message."""
    return isinstance(value, PLAIN) and not (
        isinstance(value, str) and not (value.isprintable() and len(value) <= MAX_TEXT)
    )
