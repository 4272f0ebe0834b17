"""The package's structure, beside the contracts of import-linter in pyproject.toml."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax
from transformer_jax.training.loop import TrainingLoop
from transformer_jax.training.trainer import TrainerModule

PACKAGE = Path(transformer_jax.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
CLASSES = {
    node.name: node
    for path in MODULES
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.ClassDef)
}
IN_FUNCTIONS_ALONE = {"babel", "flaxmodels", "matplotlib", "rapidfuzz", "sacrebleu", "sklearn", "torchvision"}


def imported(nodes) -> set[str]:
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            assert node.module != "transformer_jax", "a name from the package, which hides the module it comes from"
            names |= {node.module}
    return names


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_a_module_imports_heavy_libraries_inside_functions_alone(path):
    tree = ast.parse(path.read_text())
    assert not {name.split(".")[0] for name in imported(tree.body)} & IN_FUNCTIONS_ALONE
    assert not {name.split(".")[0] for name in imported(ast.walk(tree))} & {"experiments", "benchmarks", "tests"}


def assigned_attributes(function: ast.FunctionDef) -> set[str]:
    targets = [
        node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]
    return {node.attr for node in targets if isinstance(node.value, ast.Name) and node.value.id == "self"}


def assigned_outside_the_constructor(tree: ast.ClassDef) -> set[str]:
    methods = {node.name: assigned_attributes(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    return set().union(
        *(names for method, names in methods.items() if method not in ("__init__", "__post_init__", "setup"))
    )


def in_constructors(tree: ast.ClassDef) -> set[str]:
    """Attributes that the constructors of a class and of its bases in the package assign, and properties."""
    methods = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    found = {node.name for node in methods if node.decorator_list}
    found |= set().union(*(assigned_attributes(node) for node in methods if node.name == "__init__"))
    bases = [CLASSES[base.id] for base in tree.bases if isinstance(base, ast.Name) and base.id in CLASSES]
    return found.union(*map(in_constructors, bases))


@pytest.mark.parametrize(
    ("cls", "state"),
    [
        (TrainerModule, {"config", "params", "_params", "_run", "_is_entered", "steps"}),
        (TrainingLoop, {"state", "step", "evaluated_step"}),
    ],
)
def test_only_the_state_that_training_changes_is_assigned_outside_a_constructor(cls, state):
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert assigned_outside_the_constructor(tree) == state


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_no_attribute_appears_after_the_constructor(path):
    for tree in ast.walk(ast.parse(path.read_text())):
        if isinstance(tree, ast.ClassDef):
            assert assigned_outside_the_constructor(tree) <= in_constructors(tree), tree.name


def test_importing_the_package_and_a_model_loads_none_of_the_heavy_libraries():
    code = (
        "import sys, transformer_jax; transformer_jax.TransformerPredictor; "
        "print([name for name in ('torch', 'matplotlib', 'tensorboard', 'torchvision', 'sklearn', 'orbax.checkpoint')"
        " if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_torch_and_torchvision_are_a_pair_that_works():
    """A torchvision beside the torch of another release fails at import: operator torchvision::nms does not exist."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    kept = torchvision.ops.nms(boxes, scores=torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)
    assert kept.tolist() == [0, 2]
