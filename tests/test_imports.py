"""The package's structure, beside the contracts of import-linter in pyproject.toml."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax

PACKAGE = Path(transformer_jax.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
IN_FUNCTIONS_ALONE = {"babel", "flaxmodels", "matplotlib", "rapidfuzz", "sacrebleu", "sklearn", "torchvision"}


def imported(nodes) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            names_of_face = {alias.name for alias in node.names if not (PACKAGE / alias.name).is_dir()}
            assert node.module != "transformer_jax" or not names_of_face, "they hide the module that they come from"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def file_of(name: str) -> Path | None:
    """The file of one of our modules or packages."""
    path = PACKAGE.parent.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if name.startswith("transformer_jax.") and file.is_file()), None)


def closure(path: Path) -> set[Path]:
    """A file with all of ours that it imports at the top, and that these import; faces of wings are not counted."""
    found, waiting = set(), [path]
    while waiting:
        found.add(path := waiting.pop())
        files = {file_of(name) for name in imported(ast.parse(path.read_text()).body)}
        waiting += [file for file in files - found if file is not None and file.name != "__init__.py"]
    return found


@pytest.mark.parametrize(
    ("module", "most"), [("training/step.py", 10), ("nn/attention.py", 20), ("training/trainer.py", 70)]
)
def test_little_has_to_be_read_to_know_all_that_a_module_runs(module, most):
    files = closure(PACKAGE / module)
    assert len(files) <= most, sorted(str(file.relative_to(PACKAGE)) for file in files)


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_a_module_imports_heavy_libraries_inside_functions_alone(path):
    tree = ast.parse(path.read_text())
    assert not {name.split(".")[0] for name in imported(tree.body)} & IN_FUNCTIONS_ALONE
    assert not {name.split(".")[0] for name in imported(ast.walk(tree))} & {"experiments", "benchmarks", "tests"}


def test_importing_the_package_and_a_model_loads_none_of_the_heavy_libraries():
    code = (
        "import sys, transformer_jax; transformer_jax.TransformerPredictor; "
        "print([name for name in ('torch', 'matplotlib', 'tensorboard', 'torchvision', 'sklearn', 'orbax.checkpoint')"
        " if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
