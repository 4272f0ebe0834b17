"""Weight files (safetensors, Flax, PyTorch), read with their own libraries without running any code in the files.

Not guaranteed: a malicious file can keep `torch.load` busy, or let it fill the memory, until you stop the process.
"""

import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.serialization
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax.traverse_util import flatten_dict

from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import ZIP_START, outside_file
from transformer_jax.weights.layouts import Arrays

if TYPE_CHECKING:
    import torch

MAX_BYTES = 2**36  # of a file
MAX_NAME = 300  # characters in the name of an array
PICKLE_START = b"\x80"  # of PyTorch's files before version 1.6; later ones are zip archives


class WeightFile(NamedTuple):
    """Content of a file of weights."""

    arrays: Arrays  # by name; in Flax's and our own files the name is a path, keys joined by "/"
    hyperparameters: dict[str, Any]  # of a PyTorch Lightning checkpoint; empty for other files


def read_weights(path: str | Path) -> WeightFile:
    """Read a safetensors file, a Flax msgpack, or a PyTorch state dict, plain or in a Lightning checkpoint.

    The format is detected from the content.

    Raises:
        InputError: the file cannot be read, is damaged or of another format, holds objects other than tensors and plain
            values, or declares arrays larger than itself.
    """
    with outside_file(
        path, "a Flax msgpack, a safetensors or a PyTorch file of weights", MAX_BYTES
    ) as file:
        with file.open("rb") as stream:
            start = stream.read(9)
        # A safetensors file starts with the header's length, 8 bytes of any value, then the header's first character.
        if start[8:] == b"{":
            arrays = safetensors.numpy.load_file(file)
        elif start.startswith((ZIP_START, PICKLE_START)):
            return _read_torch(file)
        else:
            arrays = flatten_dict(flax.serialization.msgpack_restore(file.read_bytes()), sep="/")
        _check(arrays, np.ndarray, file)
        return WeightFile(arrays, {})


def array_of(tensor: "torch.Tensor") -> np.ndarray:
    """A tensor as a NumPy array, which may share its memory."""
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # `Tensor.numpy` does not support it
        return tensor.float().numpy().astype(jnp.bfloat16)
    return tensor.numpy()


def _read_torch(path: Path) -> WeightFile:
    """Read a state dict, plain or in a Lightning checkpoint."""
    import torch

    saved, stored_bytes = load_torch(path)
    weights = saved.get("state_dict", saved)
    _check(weights, torch.Tensor, path)
    check_stored(weights.values(), stored_bytes, path)
    arrays = {name: array_of(tensor) for name, tensor in weights.items()}
    return WeightFile(arrays, dict(saved.get("hyper_parameters", {})))


def load_torch(path: Path) -> tuple[dict[Any, Any], int]:
    """Read what PyTorch has saved, tensors and plain values; return it and its size in bytes.

    Raises:
        InputError: the file is damaged, or holds other objects.
    """
    import torch

    stored_bytes = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            stored_bytes = sum(entry.file_size for entry in archive.infolist())
            damaged = archive.testzip()  # PyTorch does not verify the checksums
        if damaged is not None:
            raise InputError(
                f"{path} was damaged: the checksum of {shortened(damaged)} does not match"
            )
    try:
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # its message advises running the file's code
        raise InputError(
            f"{path} is damaged, or holds objects other than tensors and plain values; it must be a"
            " saved state_dict()"
        ) from error
    return saved, stored_bytes


def check_stored(tensors: "Iterable[torch.Tensor]", stored_bytes: int, path: Path) -> None:
    """Raise an `InputError` if tensors are larger than the file that holds them, e.g. by strides of 0."""
    if sum(tensor.nbytes for tensor in tensors) > stored_bytes:
        raise InputError(
            f"{path} declares arrays larger than the file; every number must be stored once"
        )


def check_name(name: object, path: Path) -> None:
    """Raise an `InputError` unless the name of an array in a file is printable and not too long."""
    if not isinstance(name, str) or not name.isprintable() or len(name) > MAX_NAME:
        raise InputError(
            f"{path} has an array named {shortened(name)}; a name must be a text of at most"
            f" {MAX_NAME} printable characters"
        )


def _check(weights: Mapping[Any, object], wanted: type, path: Path) -> None:
    """Raise an `InputError` if a file holds an object of another type, or under an unusual name."""
    for name, value in weights.items():
        if not isinstance(value, wanted):
            raise InputError(
                f"{path} has an object of type {type(value).__name__} under {shortened(name)}; it"
                " must be an array"
            )
        check_name(name, path)
