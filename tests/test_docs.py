"""The documents' code runs as it is written."""

import re
import runpy

import numpy as np
from repository import REPOSITORY

from transformer_jax import load_run


def code_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (REPOSITORY / document).read_text(encoding="utf-8"), re.DOTALL)


def test_the_new_task_learns_and_comes_back(tmp_path):
    (tmp_path / "sort.py").write_text(code_of("docs/new_task.md")[0], encoding="utf-8")
    task = runpy.run_path(str(tmp_path / "sort.py"))
    _, results = task["train_sort"](task["SortConfig"](seq_len=4, checkpoint_dir=tmp_path))
    assert results["test_acc"] > 0.9
    loaded = load_run(tmp_path / "SortTask", task["SortTrainer"])
    np.testing.assert_array_equal(loaded.predict(np.array([[3, 1, 2, 0]])), [[0, 1, 2, 3]])


def test_the_readmes_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [{} for _ in code_of("README.md")]
    for block, namespace in zip(code_of("README.md"), names, strict=True):
        exec(block, namespace)
    predictor, reverse, translator = names
    assert predictor["logits"].shape == (8, 16, 10)
    assert (tmp_path / "maps.png").read_bytes().startswith(b"\x89PNG")
    assert reverse["run"].config.seq_len == 8
    assert translator["tokens"].shape == (2, 9)
