"""The package's structure, beside the contracts of import-linter and the rules of Ruff in pyproject.toml."""

import subprocess
import sys

import grimp
import pytest

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
