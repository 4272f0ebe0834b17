"""The package's structure, beside the contracts of import-linter and the rules of Ruff in pyproject.toml."""

import os
import subprocess
import sys

import grimp
import pytest
from repository import REPOSITORY

IMPORTS = """
import sys, transformer_jax
transformer_jax.TransformerPredictor
print([name for name in ("tensorboard", "orbax.checkpoint") if name in sys.modules])
transformer_jax.train_reverse, transformer_jax.train_anomaly, transformer_jax.load_run
print([name for name in ("matplotlib", "sklearn", "torch") if name in sys.modules])
"""


@pytest.mark.parametrize(("module", "most"), [("training.step", 10), ("nn.attention", 20), ("training.trainer", 70)])
def test_little_has_to_be_read_to_know_all_that_a_module_runs(module, most):
    files = grimp.build_graph("transformer_jax").find_upstream_modules(f"transformer_jax.{module}")
    assert 0 < len(files) < most, sorted(files)


@pytest.mark.slow
def test_a_model_and_a_training_load_no_more_than_they_need():
    printed = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True).stdout
    assert printed == "[]\n[]\n"


@pytest.mark.parametrize(
    ("version", "status", "line"),
    [
        ("0.9.2", 1, "ImportError: transformer-jax needs Python 3.11 or newer and jax 0.10 to 0.12; this is jax 0.9.2"),
        ("99.0", 0, "<string>:1: UserWarning: transformer-jax was tested with Python 3.11 or newer and jax 0.10 to"),
    ],
)
def test_another_jax_is_a_line_at_the_first_import(tmp_path, version, status, line):
    (tmp_path / "jax-0.dist-info").mkdir()
    (tmp_path / "jax-0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax\nVersion: {version}\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-c", "import transformer_jax"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == status
    printed, *source = done.stderr.splitlines()
    assert printed.startswith(line)
    assert source in ([], ["  import transformer_jax"])  # of a warning, from Python 3.13 on
