"""Runs and saved models of earlier commits, from `tests/older_runs`: opened, resumed, evaluated, trained further."""

import contextlib
import json
import os
import shutil
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pytest
from older_runs.make import SETTINGS, settings_for, train
from repository import REPOSITORY

from transformer_jax import ReverseConfig, load_run
from transformer_jax.cli import parse
from transformer_jax.runs.__main__ import main as list_runs
from transformer_jax.runs.settings import read_settings, settings_of, write_settings

ARCHIVES = {path.name.split(".")[0]: path for path in sorted((REPOSITORY / "tests" / "older_runs").glob("*.tar.xz"))}
SAVED = "reverse_before_optimizers_saved"
RUNS = [name for name in ARCHIVES if name != SAVED]


class Older(NamedTuple):
    """A run of an earlier commit, and the settings of the command that trained it."""

    task: str
    path: Path
    settings: dict

    def train(self, **changes: object) -> dict:
        """Train with the same command, and return the results."""
        return train(self.task, {**self.settings, "quiet": True, **changes})[1]


def unpacked(name: str, parent: Path) -> Older:
    """Unpack an archive into a directory, which becomes the current one."""
    task = next(task for task in SETTINGS if name.startswith(task))
    parent.mkdir(exist_ok=True)
    os.chdir(parent)
    shutil.unpack_archive(ARCHIVES[name], "unpacked", filter="data")
    run = json.loads(Path("unpacked", "config.json").read_text())["task"]
    return Older(task, Path("unpacked").rename(run).absolute(), settings_for(task, name))


def interrupt(run: Path) -> None:
    """Remove what a process would have lacked that was killed before its last checkpoint."""
    (run / "results.json").unlink()
    steps = sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdecimal())
    shutil.rmtree(run / "checkpoints" / str(steps[-1]))


@contextlib.contextmanager
def without_events():
    """Ignore that the archives lack the files of TensorBoard."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "log files are missing or truncated")
        yield


def assert_same(found, expected, atol: float = 0.0) -> None:
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=atol)


@pytest.fixture(autouse=True)
def in_own_directory(tmp_path, monkeypatch):
    """Change to the test's directory, and back at its end."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_an_earlier_commit_is_opened_before_and_after_it_is_resumed(name, tmp_path):
    older = unpacked(name, tmp_path)
    results = json.loads((older.path / "results.json").read_text())
    load_run(older.path)
    interrupt(older.path)
    with pytest.warns(UserWarning, match="is unfinished"):
        load_run(older.path)
    with without_events():
        resumed = older.train()
    assert resumed["steps"] == results.get("steps", resumed["steps"])
    assert resumed["val"] == pytest.approx(results["val"], rel=1e-3)
    load_run(older.path)


def test_a_resume_that_added_newer_settings_does_not_look_like_damage(tmp_path):
    older = unpacked("reverse_before_optimizers", tmp_path)
    params = load_run(older.path).params
    config = ReverseConfig(**older.settings)
    write_settings(older.path, settings_of("ReverseTask", config))  # as when the run is resumed
    assert (read_settings(older.path)[1]["optimizer"], config.optimizer) == ("adamw", "adamw")
    assert_same(load_run(older.path).params, params)


def test_what_reads_a_run_of_an_earlier_commit_agrees_on_its_settings(tmp_path, capsys):
    older = unpacked("reverse_before_optimizers", tmp_path)
    config = load_run(older.path).config
    assert config == ReverseConfig(**{**older.settings, "checkpoint_dir": tmp_path})
    read = parse(ReverseConfig, ["--config", str(older.path), "--checkpoint-dir", str(tmp_path)])
    assert read == config
    initial = parse(ReverseConfig, ["--init-from", str(older.path)], default=ReverseConfig(norm="rms"))
    assert (initial.norm, initial.model_dim) == ("layer", 6)
    later = unpacked("reverse_before_models", tmp_path / "later")
    list_runs([str(older.path), str(later.path), "--diff"])
    assert {line.split("/")[0] for line in capsys.readouterr().out.splitlines()[1:]} == {"val", "test"}


@pytest.mark.slow
def test_a_run_of_an_earlier_commit_is_evaluated_again_and_trained_further(tmp_path):
    saved, older = unpacked(SAVED, tmp_path / "saved"), unpacked("reverse_before_optimizers", tmp_path)
    results, params = json.loads((older.path / "results.json").read_text()), load_run(older.path).params
    with without_events():
        again = older.train()  # the same command for a finished run
    assert again["val"] == pytest.approx(results["val"], rel=1e-4)
    for path in (older.path, saved.path):
        assert_same(load_run(path).params, params)
    names = "train_size", "val_size", "test_size", "seq_len", "num_categories", "batch_size", "checkpoint_dir"
    of_data = {name: older.settings[name] for name in names}
    evaluated = train("reverse", {**of_data, "pretrained": str(older.path), "quiet": True})[1]
    assert evaluated["val"] == pytest.approx(results["val"], rel=1e-4)
    longer = older.train(init_from=str(older.path), name="longer", max_epochs=1)
    assert (longer["steps"], longer["val"]["loss"] < results["val"]["loss"] + 0.1) == (2, True)
    sequence = np.array([[0, 1, 2, 1, 0]])
    np.testing.assert_array_equal(load_run(saved.path).predict(sequence), load_run(older.path).predict(sequence))
