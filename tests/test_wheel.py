"""An installed wheel needs nothing of the repository: it runs from any directory, with the models that ship."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from repository import REPOSITORY

pytestmark = pytest.mark.slow
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "transformer_jax")

USE_SHIPPED_MODELS = """
import numpy as np
from transformer_jax import load_run

numbers = np.arange(32).reshape(2, 16) % 10
np.testing.assert_array_equal(load_run("reverse").predict(numbers), numbers[:, ::-1])
sets = np.random.default_rng(0).uniform(size=(3, 7, 64)).astype(np.float32)
np.testing.assert_allclose(load_run("digits").predict(sets).sum(-1), 1, atol=1e-6)
assert list(load_run("dates").predict(["March 3, 2004"])) == ["2004-03-03"]
"""

TRAIN_REVERSE = """
import numpy as np
from transformer_jax import load_run, train_reverse

sizes = {"train_size": 256, "val_size": 71, "test_size": 71, "batch_size": 64, "warmup": 2}
trainer, results = train_reverse(max_epochs=2, **sizes)
assert results["steps"] == 8
numbers = np.arange(32).reshape(2, 16) % 10
again = load_run("checkpoints/ReverseTask")
np.testing.assert_array_equal(again.predict(numbers), trainer.predict(numbers))
_, results = train_reverse(pretrained="reverse", **sizes)
assert results["test_acc"] == 1
"""


def run(*command: object, **options) -> str:
    outcome = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, **options)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy, so that the build leaves nothing in the repository."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory) -> Path:
    built = tmp_path_factory.mktemp("built")
    run("-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", f"--wheel-dir={built}", source)
    (file,) = built.iterdir()
    return file


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> dict[str, str]:
    """Variables of an environment in which `transformer_jax` is the wheel's, beside the tests' other packages."""
    installed = tmp_path_factory.mktemp("installed")
    run("-m", "pip", "install", "--no-index", "--no-deps", f"--target={installed}", wheel)
    return os.environ | {"PYTHONPATH": str(installed)}


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(source, wheel):
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    files = (path.relative_to(source) for path in (source / "transformer_jax").rglob("*") if path.is_file())
    assert sorted(contents) == sorted(str(file) for file in files if "__pycache__" not in file.parts)
    assert [name for name, content in contents.items() if content != (source / name).read_bytes()] == []
    models = [name for name in contents if name.startswith("transformer_jax/trained/models/")]
    assert len(models) == 9
    assert {"transformer_jax/py.typed", "transformer_jax/__init__.pyi"} < set(contents)


def test_python_finds_the_wheel_in_an_empty_directory(tmp_path, environment):
    output = run("-c", "import transformer_jax; print(transformer_jax.__file__)", cwd=tmp_path, env=environment)
    assert Path(output.strip()).is_relative_to(environment["PYTHONPATH"])


def test_the_models_that_ship_answer(tmp_path, environment):
    run("-c", USE_SHIPPED_MODELS, cwd=tmp_path, env=environment)
    assert not list(tmp_path.iterdir())


def test_reverse_is_trained_opened_again_and_listed(tmp_path, environment):
    run("-c", TRAIN_REVERSE, cwd=tmp_path, env=environment)
    (listed,) = (
        line.split()
        for line in run("-m", "transformer_jax.runs", cwd=tmp_path, env=environment).splitlines()
        if " 8/8 " in line
    )
    assert listed[:3] == ["ReverseTask", "ReverseTask", "finished"]
