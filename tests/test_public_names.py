"""The public names: the stubs are their tables, and what type checkers and editors see is what Python imports."""

import ast
from importlib import import_module
from pathlib import Path

import jedi
import pytest
from repository import REPOSITORY

import transformer_jax

PACKAGE = Path(transformer_jax.__file__).parent


def names_of(stub: Path) -> dict[str, str]:
    """The modules that define a stub's names."""
    package = ".".join(stub.relative_to(PACKAGE.parent).parent.parts)
    imports = [node for node in ast.parse(stub.read_text("ascii")).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: f"{package}.{node.module}" for node in imports if node.module for alias in node.names}


FACES = {".".join(stub.relative_to(PACKAGE.parent).parent.parts): names_of(stub) for stub in PACKAGE.rglob("*.pyi")}
PUBLIC = [(face, name) for face, names in FACES.items() for name in names]


def test_the_first_hour_has_about_sixty_names():
    names = FACES["transformer_jax"]
    assert 50 <= len(names) <= 70
    assert {"BlockSettings", "TrainerModule", "dot_product_attention", "load_run", "train_and_test"} <= set(names)
    assert names.keys() < set(dir(transformer_jax))


@pytest.mark.parametrize(("face", "name"), PUBLIC, ids=[f"{face}.{name}" for face, name in PUBLIC])
def test_a_name_is_the_object_of_the_module_that_the_stub_names(face, name):
    module = import_module(FACES[face][name])
    value = getattr(import_module(face), name)
    assert value is getattr(module, name)
    assert value.__module__ == module.__name__  # which defines it, rather than imports it
    assert value.__doc__


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="train_reverses"):
        transformer_jax.train_reverses  # noqa: B018


def test_an_editor_completes_the_names():
    def completed(code: str) -> dict[str, str]:
        script = jedi.Script(code, project=jedi.Project(REPOSITORY))
        return {completion.name: completion.type for completion in script.complete()}

    of_tra = {name: kind for name, kind in completed("from transformer_jax import Tra").items() if name[0] == "T"}
    assert of_tra == dict.fromkeys((name for name in FACES["transformer_jax"] if name.startswith("Tra")), "class")
    assert len(of_tra) == 8
    assert completed("import transformer_jax\ntransformer_jax.load_") == {
        "load_pretrained": "function",
        "load_run": "function",
    }
