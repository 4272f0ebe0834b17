"""The arrays of a model in safetensors files, read one at a time."""

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
from jax.typing import DTypeLike

from transformer_jax.argument_checks import Shapes, check_numbers
from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import MAX_JSON_BYTES, outside_file
from transformer_jax.weights.files import MAX_BYTES, check_name

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Converts all arrays of the pickled files, including duplicates and transposed views of other arrays.
CONVERSION = (
    "import pathlib, torch; from safetensors.torch import save_file; d = pathlib.Path({}); "
    'save_file({{n: a.contiguous().clone() for f in d.glob("pytorch_model*.bin") '
    'for n, a in torch.load(f, map_location="cpu", weights_only=True).items()}}, '
    'd / "model.safetensors", metadata={{"format": "pt"}})'
)


class StoredArrays:
    """Arrays in `model.safetensors`, or in the files that `model.safetensors.index.json` lists.

    Args:
        directory: directory of the files.

    Raises:
        InputError: there is no such file, a file is damaged, or two files have an array of the same name.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shapes: Shapes = {}  # of all arrays, by name
        self._files: dict[str, Path] = {}  # of each array
        for path in self._paths():
            with _opened(path) as file:
                for name in file.keys():  # noqa: SIM118  # it is not a mapping
                    check_name(name, path)
                    if name in self._files:
                        raise InputError(
                            f"{path} and another file of {directory} both have {shortened(name)}"
                        )
                    self._files[name] = path
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())

    def read(self, name: str, dtype: DTypeLike | None = None) -> np.ndarray:
        """Read a copy of one array; nothing else of the file is read.

        Args:
            name: name of the array.
            dtype: type to convert to; None keeps the stored type.

        Raises:
            InputError: the array cannot be read, is not of a floating-point type, or is not finite in `dtype`.
        """
        # The file is opened for each array: pages that were read count as memory until it is closed.
        path = self._files[name]
        with _opened(path) as file:
            array: np.ndarray = file.get_tensor(name)
        if dtype is not None and jnp.issubdtype(array.dtype, jnp.floating):
            with np.errstate(over="ignore"):  # infinite values are rejected below
                array = array.astype(jnp.dtype(dtype), copy=False)
        check_numbers({name: array}, str(path))
        return array

    def _paths(self) -> list[Path]:
        """The files to read: the single one, or those that the index lists."""
        directory = self.directory
        if (directory / SINGLE).exists():
            return [directory / SINGLE]
        if not (directory / INDEX).exists():
            problem = f"{directory} has no {SINGLE}"
            if any(directory.glob("pytorch_model*.bin")):
                conversion = CONVERSION.format(json.dumps(str(directory)))
                command = shlex.join([sys.executable, "-c", conversion])
                problem += f"; pickled files are not supported. Convert them with: {command}"
            raise InputError(problem)
        kind = "an index of safetensors files, with a weight_map"
        with outside_file(directory / INDEX, kind, MAX_JSON_BYTES) as file:
            file_of_array = json.loads(file.read_bytes())["weight_map"]
            names = {Path(path).name for path in file_of_array.values()}  # beside the index
            return [directory / name for name in sorted(names)]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:  # the library has no types
    """Open a safetensors file; any defect raises an `InputError`, even if it was truncated in the meantime."""
    with (
        outside_file(path, "a safetensors file", MAX_BYTES),
        safetensors.safe_open(path, framework="numpy") as file,
    ):
        yield file
