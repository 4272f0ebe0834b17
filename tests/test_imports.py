"""The walls of the house: who imports whom, and that the heavy libraries wait until they are used."""

import ast
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import transformer_jax

PACKAGE = Path(transformer_jax.__file__).parent
MODELS = (
    "device_axis",
    "dense",
    "dropout",
    "masks",
    "attention",
    "positional",
    "blocks",
    "encoder",
    "decoder",
    "predictor",
    "seq2seq",
)
TORCH = ("loaders", "tasks", "torch_weights", "weight_files")
IN_FUNCTIONS_ALONE = ("torchvision", "flaxmodels", "sklearn")


def modules() -> dict[str, ast.Module]:
    names = [info.name for info in pkgutil.walk_packages([str(PACKAGE)]) if not info.ispkg]
    files = {str(path.relative_to(PACKAGE).with_suffix("")).replace("/", "."): path for path in PACKAGE.rglob("*.py")}
    assert set(names) <= set(files)
    return {name: ast.parse(path.read_text()) for name, path in files.items()}


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


def own(names: set[str]) -> set[str]:
    return {name.removeprefix("transformer_jax.") for name in names if name.startswith("transformer_jax.")}


def libraries(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names} - {"transformer_jax"}


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_models_import_jax_flax_and_each_other_downward(number):
    names = imported(ast.walk(modules()[MODELS[number]]))
    assert own(names) <= {"errors", *MODELS[:number]}
    assert libraries(names) <= {"jax", "jaxtyping", "flax", "numpy", "math", "collections", "typing"}


def test_plots_import_no_model_but_the_positional_table():
    assert own(imported(ast.walk(modules()["plots"]))) <= {"positional"}


def test_the_trainer_knows_no_task_and_nothing_imports_the_experiments():
    for name, tree in modules().items():
        names = imported(ast.walk(tree))
        assert "experiments" not in libraries(names), name
        if not name.startswith("tasks"):
            assert not any(module.startswith("tasks") for module in own(names)), name


def test_torch_stays_in_its_rooms_and_some_libraries_in_functions():
    for name, tree in modules().items():
        if not name.startswith(TORCH):
            assert "torch" not in libraries(imported(ast.walk(tree))), name
        assert not libraries(imported(tree.body)) & set(IN_FUNCTIONS_ALONE), name


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
    for name in names:
        assert getattr(transformer_jax, name).__doc__, name


def test_torch_and_torchvision_are_a_pair_that_works():
    """A torchvision beside the torch of another release fails at import: operator torchvision::nms does not exist."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    kept = torchvision.ops.nms(boxes, scores=torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5)
    assert kept.tolist() == [0, 2]
