"""An installed wheel does not need the repository: it runs in any directory, with the included models."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from repository import REPOSITORY

pytestmark = pytest.mark.slow

USE = """
import pathlib, sys
import numpy as np
import transformer_jax
from transformer_jax import load_run, train_reverse

print(transformer_jax.__file__)
sizes = {"train_size": 256, "val_size": 71, "test_size": 71, "batch_size": 64, "warmup": 2}
trainer, results = train_reverse(max_epochs=2, compilation_cache="compiled", **sizes)
assert results["steps"] == 8 and "torch" not in sys.modules  # for workers alone
assert len([*pathlib.Path("compiled").glob("*run_stacked*-cache")]) == 1  # the program of all steps, compiled once
numbers = np.arange(32).reshape(2, 16) % 10
np.testing.assert_array_equal(load_run("reverse").predict(numbers), numbers[:, ::-1])
assert load_run("digits").predict(np.ones((3, 7, 64), np.float32)).shape == (3, 7)
assert list(load_run("dates").predict(["March 3, 2004"])) == ["2004-03-03"]
np.testing.assert_array_equal(load_run("checkpoints/ReverseTask").predict(numbers), trainer.predict(numbers))
"""


def run(*command: object, **options) -> str:
    outcome = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, **options)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy, so that the build leaves nothing in the repository."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE", "transformer_jax"):
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source) -> Path:
    run("-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", f"--wheel-dir={source}", source)
    (file,) = source.glob("*.whl")
    return file


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(source, wheel):
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    files = (path.relative_to(source) for path in (source / "transformer_jax").rglob("*") if path.is_file())
    assert sorted(contents) == sorted(str(file) for file in files if "__pycache__" not in file.parts)
    assert [name for name, content in contents.items() if content != (source / name).read_bytes()] == []


def test_in_an_empty_directory_the_models_that_ship_answer_and_one_is_trained_and_listed(tmp_path, wheel):
    installed, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    run("-m", "pip", "install", "--no-index", "--no-deps", f"--target={installed}", wheel)
    options = {"cwd": work, "env": os.environ | {"PYTHONPATH": str(installed)}}
    assert run("-c", USE, **options).startswith(str(installed))
    assert re.search("ReverseTask +ReverseTask +finished +8/8 ", run("-m", "transformer_jax.runs", **options))
