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


@pytest.mark.parametrize(
    ("cls", "state"),
    [(TrainerModule, {"params", "_params", "_run", "steps"}), (TrainingLoop, {"state", "step", "evaluated_step"})],
)
def test_only_the_state_that_training_changes_is_assigned_outside_a_constructor(cls, state):
    (tree,) = ast.parse(inspect.getsource(cls)).body
    assert assigned_outside_the_constructor(tree) == state


@pytest.mark.parametrize("path", MODULES, ids=[str(path.relative_to(PACKAGE)) for path in MODULES])
def test_no_attribute_appears_after_the_constructor(path):
    for tree in ast.walk(ast.parse(path.read_text())):
        if not isinstance(tree, ast.ClassDef):
            continue
        constructor = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
        setters = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
        in_constructor = set().union(*map(assigned_attributes, constructor))
        assert assigned_outside_the_constructor(tree) <= in_constructor | setters, tree.name


def test_importing_the_package_and_a_model_loads_none_of_the_heavy_libraries():
    code = (
        "import sys, transformer_jax; transformer_jax.TransformerPredictor; "
        "print([name for name in ('torch', 'matplotlib', 'tensorboard', 'torchvision', 'sklearn', 'orbax.checkpoint')"
        " if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_every_public_name_can_be_imported():
    names = set(transformer_jax.__all__)
    assert {"scaled_dot_product", "MultiheadAttention", "TrainerModule", "train_reverse"} <= names
    assert {"BlockSettings", "Criterion", "device_number", "parse", "run", "train_and_test"} <= names
    for name in names:
        assert getattr(transformer_jax, name).__doc__, name


def test_torch_and_torchvision_are_a_pair_that_works():
    """A torchvision beside the torch of another release fails at import: operator torchvision::nms does not exist."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    kept = torchvision.ops.nms(boxes, scores=torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)
    assert kept.tolist() == [0, 2]
