"""How much must be read to understand a training: the calls on its path, and the files behind it."""

import re
import subprocess
import sys
import traceback
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from repository import REPOSITORY

import transformer_jax
from transformer_jax import TrainerModule, TrainingConfig, TransformerPredictor, make_loader
from transformer_jax.data import ArrayDataset

# Prints how many files of the package each module imports, without `__init__` files, which only have names.
COUNTED = """
import importlib, sys
for module in sys.argv[1:]:
    for name in [name for name in sys.modules if name.split(".")[0] == "transformer_jax"]:
        del sys.modules[name]
    importlib.import_module("transformer_jax." + module)
    ours = [found for name, found in sys.modules.items() if name.startswith("transformer_jax.")]
    print(sum(not hasattr(found, "__path__") for found in ours))
"""

PACKAGE = Path(transformer_jax.__file__).parent


def calls_of_ours(first: str, *, outermost: bool = False) -> list[str]:
    """Return the package's functions on the stack, from the last one named `first`, or from the first one."""
    names = [frame.name for frame in traceback.extract_stack() if Path(frame.filename).is_relative_to(PACKAGE)]
    return names[names.index(first) if outermost else len(names) - 1 - names[::-1].index(first) :]


class Noting(TrainerModule):
    """Notes the calls that lead to its loss when the training step is traced."""

    name = "Noting"
    config_class = TrainingConfig
    calls = None

    def create_model(self):
        return nn.Dense(3)

    def model_inputs(self, inputs):
        return (jax.nn.one_hot(inputs, 3),)

    def loss_function(self, params, batch, key, *, train):
        if train and self.calls is None:
            self.calls = calls_of_ours("fit")
        logits = self.model.apply({"params": params}, *self.model_inputs(batch.inputs))
        return {"loss": (optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets), 1.0)}


@pytest.mark.usefixtures("without_type_checks")
def test_few_calls_lie_between_fit_and_the_loss_of_a_task(tmp_path):
    numbers = np.arange(13, dtype=np.int32) % 3
    config = TrainingConfig(max_epochs=1, batch_size=5, warmup=0, num_devices=1, checkpoint_dir=tmp_path, quiet=True)
    trainer = Noting(config)
    loaders = (make_loader(ArrayDataset(numbers, numbers), 5, drop_last=drop_last) for drop_last in (True, False))
    trainer.fit(*loaders)
    assert len(trainer.calls) + 1 <= 9, trainer.calls  # and the loss function


@pytest.mark.usefixtures("without_type_checks")
def test_few_calls_lie_between_a_model_and_the_product_of_queries_and_keys(monkeypatch):
    calls, einsum = [], jnp.einsum

    def noting(spec, *operands, **options):
        if "td" in spec:
            calls.append(calls_of_ours("__call__", outermost=True))
        return einsum(spec, *operands, **options)

    monkeypatch.setattr(jnp, "einsum", noting)
    model, x = TransformerPredictor(6, 3, num_heads=2, num_layers=1), np.ones((1, 5, 7), np.float32)
    jax.eval_shape(model.init, jax.random.key(0), x)
    assert len(calls[0]) <= 8, calls[0]


def test_few_files_are_behind_a_model_a_trainer_and_the_reverse_task():
    most = {"nn.predictor": 14, "fit.trainer": 45, "tasks.reverse": 60}
    command = [sys.executable, "-c", COUNTED, *most]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    counts = dict(zip(most, map(int, printed.split()), strict=True))
    assert all(10 < counts[module] <= most[module] for module in most), counts


def test_the_reading_lists_have_their_files_in_order_and_with_their_lines():
    page = (REPOSITORY / "docs" / "afternoon.md").read_text(encoding="utf-8")
    beginning, end = page.split("## The training\n")
    lines_of_model = check_reading_list(beginning, num_files=9)
    check_reading_list(end, num_files=8)
    assert lines_of_model <= 1450


def check_reading_list(page: str, num_files: int) -> int:
    """Check that a list has the lines of each file, describes it, and that none imports a later one; return the sum."""
    listed = re.findall(r"^\| `(\S+)\.py` \| (\d+) \|$", page, re.MULTILINE)
    files = [file for file, _ in listed]
    sources = [(PACKAGE / f"{file}.py").read_text("utf-8") for file in files]
    lines = [len(source.splitlines()) for source in sources]
    assert lines == [int(number) for _, number in listed]
    assert len(files) == num_files
    assert re.findall(r"^\*\*`(\S+)\.py`\*\*", page, re.MULTILINE) == files
    for number, source in enumerate(sources):
        imported = re.findall(r"^from transformer_jax\.(\S+) import", source, re.MULTILINE)
        assert not {name.replace(".", "/") for name in imported} & set(files[number + 1 :]), files[number]
    return sum(lines)
