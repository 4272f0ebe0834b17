"""Files of weights, Flax's and PyTorch's, read without running any code in them."""

import io
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

import flax.serialization
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict

from transformer_jax.errors import InputError
from transformer_jax.weights.layouts import Arrays

# First bytes: PyTorch's files are zip archives, or pickles before version 1.6; Flax's are maps in msgpack.
TORCH_BEGINNINGS = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)))
FLAX_BEGINNINGS = tuple(bytes([code]) for code in (*range(0x81, 0x90), 0xDE, 0xDF))

PLAIN = int | float | str | None  # types of the hyperparameters that are kept


class WeightFile(NamedTuple):
    """Content of a file of weights."""

    arrays: Arrays  # by name; in Flax files a path, its keys joined by "/"
    hyperparameters: dict[str, Any]  # from a PyTorch Lightning checkpoint; empty for other files
    is_torch: bool  # a PyTorch file; otherwise Flax's msgpack


def read_weights(path: str | Path) -> WeightFile:
    """Read a Flax msgpack of parameters, or a PyTorch file of a state dict, bare or as Lightning saves it.

    The kind is recognized from the content. Only arrays and plain values are read, so that no file can run code.

    Raises:
        InputError: the file cannot be read, is of another kind, is damaged, or holds other objects.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error})") from error
    if content.startswith(TORCH_BEGINNINGS):
        kind, read = "PyTorch file", _read_torch
    elif content.startswith(FLAX_BEGINNINGS):
        kind, read = "Flax msgpack", _read_flax
    else:
        kind = "neither a Flax msgpack nor a PyTorch file" if content else "empty"
        raise InputError(f"{path} is {kind}; it must be a file of weights")
    try:
        return read(content)
    except InputError as error:
        raise InputError(f"{path} {error}") from error
    except Exception as error:  # damaged bytes make the readers raise errors of any class
        raise InputError(f"{path} is no {kind} that can be read: truncated, damaged or of another kind") from error


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
    tree = flax.serialization.msgpack_restore(content)
    arrays = {"/".join(map(str, path)): leaf for path, leaf in flatten_dict(tree).items()}
    _check_types(arrays, np.ndarray)
    return WeightFile(arrays, {}, is_torch=False)


def _read_torch(content: bytes) -> WeightFile:
    import torch  # here, since a Flax file does not need it

    try:
        saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if found := re.search(r"GLOBAL (\S+)", str(error)):  # the rest of the message advises to run the code
            raise InputError(
                f"asks for {found[1]}; only tensors and plain values are read, since anything else could run code"
            ) from error
        raise
    weights = saved.get("state_dict", saved)
    _check_types(weights, torch.Tensor)
    hyperparameters = saved.get("hyper_parameters", {}) if weights is not saved else {}
    arrays = {str(name): array_of(value) for name, value in weights.items()}
    plain = {name: value for name, value in hyperparameters.items() if isinstance(value, PLAIN)}
    return WeightFile(arrays, plain, is_torch=True)


def _check_types(weights: dict[Any, Any], wanted: type) -> None:
    for name, value in weights.items():
        if not isinstance(value, wanted):
            raise InputError(f"holds an object of type {type(value).__name__} under {name!r}; it must hold arrays only")
