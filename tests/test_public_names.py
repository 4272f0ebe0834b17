"""The public names: the stub is their table, and what type checkers and editors see is what Python imports."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import jedi
import pytest
from repository import REPOSITORY

import transformer_jax

STUB = Path(transformer_jax.__file__).with_suffix(".pyi")
IMPORTS = [node for node in ast.parse(STUB.read_text("ascii")).body if isinstance(node, ast.ImportFrom)]
MODULES = {alias.name: node.module for node in IMPORTS for alias in node.names}

SCRIPT = """\
from transformer_jax import TransformerPredictor, load_run, parse, train_anomaly, train_reverse
from transformer_jax.tasks.reverse import ReverseConfig

reveal_type(load_run("x"))
reveal_type(load_run("x").config)
reveal_type(train_reverse(max_epochs=1))
reveal_type(TransformerPredictor(model_dim=7, num_classes=3, num_heads=1, num_layers=2))
reveal_type(train_anomaly()[0])
reveal_type(parse(ReverseConfig, []))
train_reverses()
"""
REVEALED = [
    "transformer_jax.training.trainer.TrainerModule",
    "transformer_jax.config.TrainingConfig",
    "tuple[transformer_jax.tasks.reverse.ReverseTrainer, dict[str, Any]]",
    "transformer_jax.nn.predictor.TransformerPredictor",
    "transformer_jax.tasks.anomaly.task.AnomalyTrainer",
    "transformer_jax.tasks.reverse.ReverseConfig",
]


def test_each_name_stands_in_the_stub_once_under_its_own_name():
    aliases = [alias for node in IMPORTS for alias in node.names]
    assert [alias.name for alias in aliases] == [
        alias.asname for alias in aliases
    ]  # else it is not public to a checker
    assert len(aliases) == len(MODULES)
    assert sorted(MODULES) == sorted(transformer_jax.__all__)
    assert set(MODULES) <= set(dir(transformer_jax))
    assert {"scaled_dot_product", "MultiheadAttention", "TrainerModule", "train_reverse"} <= set(MODULES)
    assert {"BlockSettings", "Criterion", "device_number", "parse", "run", "train_and_test"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_name_is_the_object_of_the_module_that_the_stub_names(name):
    module = import_module(f"transformer_jax.{MODULES[name]}")
    value = getattr(transformer_jax, name)
    assert value is getattr(module, name)
    assert value.__module__ == module.__name__  # which defines it, rather than imports it
    assert value.__doc__


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="train_reverses"):
        transformer_jax.train_reverses  # noqa: B018


@pytest.mark.slow
def test_mypy_knows_the_types_of_the_public_names(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--strict", "--show-absolute-path", str(script)]
    outcome = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)  # with the cache of `make types`
    lines = outcome.stdout.splitlines()
    types = [line.split('Revealed type is "')[1] for line in lines if "Revealed type" in line]
    assert len(types) == len(REVEALED), outcome.stdout + outcome.stderr
    for actual, expected in zip(types, REVEALED, strict=True):
        assert actual == f'{expected}"'
    errors = [line for line in lines if "error:" in line and line.startswith(str(script))]
    assert len(errors) == 1, errors
    assert errors[0].startswith(f'{script}:10: error: Name "train_reverses" is not defined')


def test_an_editor_completes_the_names():
    def completed(code: str) -> dict[str, str]:
        script = jedi.Script(code, project=jedi.Project(REPOSITORY))
        return {completion.name: completion.type for completion in script.complete()}

    of_tra = completed("from transformer_jax import Tra")
    assert [name for name in of_tra if name.startswith("Tra")] == [
        "TrainerModule",
        "TrainingConfig",
        "Transformer",
        "TransformerDecoder",
        "TransformerEncoder",
        "TransformerLM",
        "TransformerPredictor",
        "TranslationConfig",
        "TranslationTrainer",
    ]
    assert {of_tra[name] for name in of_tra if name.startswith("Tra")} == {"class"}
    assert completed("import transformer_jax\ntransformer_jax.load_") == {
        "load_pretrained": "function",
        "load_run": "function",
    }
