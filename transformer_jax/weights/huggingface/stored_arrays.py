"""The arrays of a model in safetensors files, read one at a time."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import outside_file, read_json, writing_into
from transformer_jax.weights.files import MAX_BYTES, MAX_NAME
from transformer_jax.weights.layouts import Shapes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = "pytorch_model.bin"
FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}


class StoredArrays:
    """Arrays in `model.safetensors`, or in the files that `model.safetensors.index.json` lists.

    Args:
        directory: of the files.

    Raises:
        InputError: there are none, one is damaged, or the index names a file outside of the directory or another
            content than the files have.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shapes: Shapes = {}  # of all arrays, by name
        self._files: dict[str, Any] = {}  # the open file of each array
        for path in self._paths():
            with outside_file(path, "a safetensors file", MAX_BYTES):
                file: Any = safetensors.safe_open(path, framework="numpy")
                for name in file.keys():  # noqa: SIM118  # it is no mapping
                    self._check(name, file.get_slice(name).get_dtype(), path)
                    self._files[name] = file
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())

    def read(self, name: str) -> np.ndarray:
        """One array, a copy of its own.

        Raises:
            InputError: it is not finite.
        """
        with self._named(name):
            array: np.ndarray = self._files[name].get_tensor(name)
        if not np.isfinite(array).all():
            raise InputError(f"{name} in {self.directory} holds NaN or infinity; every number must be finite")
        return array

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any class: a file that was cut while it was open
            raise InputError(f"{name} in {self.directory} can't be read: {error}") from error

    def _check(self, name: str, dtype: str, path: Path) -> None:
        if name in self._files:
            raise InputError(f"{path} has {shortened(name)}, which another file of {self.directory} has too")
        if not name.isprintable() or len(name) > MAX_NAME:
            raise InputError(f"{path} has a name that is no text of at most {MAX_NAME} printable characters")
        if dtype not in FLOATS:
            raise InputError(f"{name} in {path} has the type {dtype}; it must be one of {', '.join(FLOATS)}")

    def _paths(self) -> list[Path]:
        directory = self.directory
        if (directory / SINGLE).exists():
            return [directory / SINGLE]
        if not (directory / INDEX).exists():
            remedy = ""
            if any(directory.glob("pytorch_model*.bin")):
                remedy = (
                    '; pickled files are not read. This writes what is read: python -c "from transformers import '
                    f"AutoModel; AutoModel.from_pretrained('{directory}').save_pretrained('{directory}')\""
                )
            raise InputError(f"{directory} has no {SINGLE}{remedy}")
        index = read_json(directory / INDEX, "an index of safetensors files").get("weight_map")
        if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
            raise InputError(f"{directory / INDEX} has no weight_map from names of arrays to names of files")
        for file in index.values():
            if file != Path(file).name or not file.endswith(".safetensors"):
                raise InputError(f"{directory / INDEX} names {shortened(file)}; it must be a file beside it")
        return [directory / file for file in sorted(set(index.values()))]


def write_arrays(directory: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `model.safetensors`."""
    with writing_into("directory", directory):
        contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        safetensors.numpy.save_file(contiguous, directory / SINGLE, metadata={"format": "pt"})
