"""The documents' code runs as it is written."""

import dataclasses
import json
import re
import runpy

import jax
import numpy as np
import pytest
from repository import REPOSITORY

from transformer_jax import BlockSettings, load_run
from transformer_jax.data.loader import make_loader
from transformer_jax.tasks.experiment import TaskData

pytestmark = pytest.mark.slow


def code_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (REPOSITORY / document).read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def new_task(tmp_path_factory) -> dict:
    """The names that all code of docs/new_task.md defines, in its order."""
    file = tmp_path_factory.mktemp("new_task") / "sort.py"
    whole_task, *changes = code_of("docs/new_task.md")
    file.write_text(whole_task, encoding="utf-8")
    names = runpy.run_path(str(file))
    for change in changes:
        assert sum(bool(line.strip()) for line in change.splitlines()) < 10
        exec(change, names)
    return names


def test_the_new_task_learns_and_comes_back(tmp_path, new_task):
    _, results = new_task["train_sort"](new_task["SortConfig"](seq_len=4, checkpoint_dir=tmp_path))
    assert results["test_acc"] > 0.9
    loaded = load_run(tmp_path / "SortTask", new_task["SortTrainer"])
    np.testing.assert_array_equal(loaded.predict(np.array([[3, 1, 2, 0]])), [[0, 1, 2, 3]])


def train_shortly(tmp_path, new_task, trainer_class: str, **settings) -> tuple:
    """Train a changed part for 20 steps."""
    config = new_task["SortConfig"](seq_len=4, max_epochs=2, batch_size=32, warmup=3, eval_every=1)
    config = dataclasses.replace(config, checkpoint_dir=tmp_path, **settings)
    loaders = [make_loader(new_task["SortDataset"](320, 4, seed), 32, drop_last=seed == 1) for seed in (1, 2, 3)]
    return new_task["train_and_test"](new_task[trainer_class], config, lambda config: TaskData(*loaders))


def test_the_changed_optimizer_is_the_one_that_trains(tmp_path, new_task):
    trainer, _ = train_shortly(tmp_path, new_task, "LionTrainer")
    state = trainer.run.checkpoints.read(20).state
    assert set(state["opt_state"][0]) == {"count", "mu"}  # Lion has one average, Adam two


def test_the_changed_metric_chooses_the_best_model(tmp_path, new_task):
    trainer, results = train_shortly(tmp_path, new_task, "WholeTrainer", best_by=new_task["whole_config"].best_by)
    whole = {step: trainer.run.checkpoints.metrics(step)["whole"] for step in trainer.run.checkpoints.steps}
    assert whole[trainer.run.checkpoints.best_step] == max(whole.values())
    assert results["val"]["whole"] < results["val"]["accuracy"]  # a whole sequence is harder than a number


def test_the_changed_block_computes_attention_and_feed_forward_side_by_side(new_task):
    model = new_task["parallel_model"].clone(num_layers=1, settings=BlockSettings(norm_first=True))
    x = np.random.default_rng(0).normal(size=(2, 5, 7)).astype(np.float32)
    bound = model.bind(model.init(jax.random.key(0), x))
    block = bound.encoder.layers[0]
    h = np.asarray(bound.input_layer(x))
    normed = block.self_attn_residual.norm(h)
    expected = h + block.self_attn(normed) + block.feed_forward(normed, train=False)
    np.testing.assert_allclose(block(h), expected, atol=1e-5)
    assert "feed_forward_residual" not in bound.variables["params"]["encoder"]["layers_0"]


def test_the_readmes_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [{} for _ in code_of("README.md")]
    for block, namespace in zip(code_of("README.md"), names, strict=True):
        exec(block, namespace)
    predictor, reverse, translator = names
    assert predictor["logits"].shape == (8, 16, 10)
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert reverse["run"].config.seq_len == 8
    assert json.loads((tmp_path / "checkpoints/ReverseTask/results.json").read_text())["steps"] == 30
    assert translator["tokens"].shape == (2, 9)
