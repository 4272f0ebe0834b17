"""The public names: the stubs define them, and each name is the object that Python imports."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import transformer_jax

PACKAGE = Path(transformer_jax.__file__).parent


def names_of(stub: Path) -> dict[str, str]:
    """Return the modules that define a stub's names."""
    parts = stub.relative_to(PACKAGE.parent).parent.parts
    imports = [node for node in ast.parse(stub.read_text("ascii")).body if isinstance(node, ast.ImportFrom)]
    modules = {node: ".".join((*parts[: len(parts) + 1 - node.level], node.module)) for node in imports if node.module}
    return {alias.name: module for node, module in modules.items() for alias in node.names}


SECOND_NAMES = {"AttentionDropout", "CausalCache"}  # of what another module defines
FACES = {".".join(stub.relative_to(PACKAGE.parent).parent.parts): names_of(stub) for stub in PACKAGE.rglob("*.pyi")}


def test_the_first_hour_has_about_sixty_names():
    names = FACES["transformer_jax"]
    assert 50 <= len(names) <= 70
    assert {"BlockSettings", "TrainerModule", "dot_product_attention", "load_run", "train_and_test"} <= set(names)
    assert names.keys() < set(dir(transformer_jax))


@pytest.mark.parametrize("face", FACES)
def test_a_name_is_the_object_of_the_module_that_the_stub_names(face):
    for name, module in FACES[face].items():
        value = getattr(import_module(face), name)
        assert value is getattr(import_module(module), name)
        assert value.__module__ == module or name in SECOND_NAMES, name  # which defines it, rather than imports it
        assert value.__doc__, name
