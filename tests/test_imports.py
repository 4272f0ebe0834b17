"""The package's structure, beside the contracts of import-linter in pyproject.toml."""

import subprocess
import sys

import grimp
import pytest

IMPORT_ALL = """
import importlib, pkgutil, sys, transformer_jax
transformer_jax.TransformerPredictor
print([name for name in ("torch", "tensorboard", "orbax.checkpoint") if name in sys.modules])
for module in pkgutil.walk_packages(transformer_jax.__path__, "transformer_jax."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
heavy = "babel", "flaxmodels", "matplotlib", "rapidfuzz", "sacrebleu", "sklearn", "torchvision"
print([name for name in (*heavy, "experiments", "benchmarks", "tests") if name in sys.modules])
"""


@pytest.mark.parametrize(("module", "most"), [("training.step", 10), ("nn.attention", 20), ("training.trainer", 70)])
def test_little_has_to_be_read_to_know_all_that_a_module_runs(module, most):
    files = grimp.build_graph("transformer_jax").find_upstream_modules(f"transformer_jax.{module}")
    assert 0 < len(files) < most, sorted(files)


@pytest.mark.slow
def test_a_model_loads_no_pytorch_and_heavy_libraries_are_imported_inside_functions_alone():
    printed = subprocess.run([sys.executable, "-c", IMPORT_ALL], check=True, capture_output=True, text=True).stdout
    assert printed == "[]\n[]\n"
