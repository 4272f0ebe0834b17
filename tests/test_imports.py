"""The package's structure, in addition to the contracts of import-linter and Ruff's rules in pyproject.toml."""

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


@pytest.mark.parametrize(("module", "most"), [("training.step", 11), ("nn.attention", 20)])
def test_little_has_to_be_read_to_know_all_that_a_module_runs(module, most):
    files = grimp.build_graph("transformer_jax").find_upstream_modules(f"transformer_jax.{module}")
    assert 0 < len(files) < most, sorted(files)


def modules_of_training(graph: grimp.ImportGraph) -> set[str]:
    wings = [f"transformer_jax.{wing}" for wing in ("training", "fit", "fitted")]
    modules = {module for wing in wings for module in graph.find_descendants(wing)}
    assert len(modules) > 20
    return modules


def test_no_module_of_training_is_behind_one_that_it_imports():
    graph = grimp.build_graph("transformer_jax")
    modules = modules_of_training(graph)
    for module in modules:
        for imported in graph.find_modules_directly_imported_by(module) & modules:
            assert graph.find_shortest_chain(imported, module) is None, (module, imported)


def test_few_modules_know_the_trainer():
    graph = grimp.build_graph("transformer_jax")
    importers = graph.find_modules_that_directly_import("transformer_jax.fit.trainer")
    assert importers & modules_of_training(graph) == {"transformer_jax.training.trainer"}
    assert len(importers) <= 8, sorted(importers)


@pytest.mark.slow
def test_a_model_and_a_training_load_no_more_than_they_need():
    printed = subprocess.run([sys.executable, "-c", IMPORTS], check=True, capture_output=True, text=True).stdout
    assert printed == "[]\n[]\n"


@pytest.mark.parametrize(
    ("version", "kind"), [("0.9.2", "ImportError: transformer-jax needs"), ("99.0rc1", "UserWarning: ")]
)
def test_another_jax_is_a_line_at_the_first_import(tmp_path, version, kind):
    (tmp_path / "jax-0.dist-info").mkdir()
    (tmp_path / "jax-0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: jax\nVersion: {version}\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-c", "import transformer_jax"]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True).stderr
    (line,) = [line for line in printed.splitlines() if kind in line]
    assert line.endswith(
        f"Python 3.11 with jax 0.10, or Python 3.12 and newer with jax 0.11.2 to 0.12; this is jax {version}"
    )
    assert "jax/_src" not in printed
