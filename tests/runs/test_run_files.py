"""Files of a training: results with their provenance, and its line in the list of runs."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from finished_runs import finished_run

from transformer_jax.fitted.results import git_commit, versions
from transformer_jax.runs.listing import read_run
from transformer_jax.runs.settings import read_settings


@pytest.mark.slow
def test_results_hold_every_metric_and_their_origin_and_the_list_says_the_same(tmp_path_factory):
    directory = finished_run(tmp_path_factory, "ReverseTask")
    found, run = json.loads((directory / "results.json").read_text()), read_run(directory)
    assert found["val"].keys() == found["test"].keys() == {"loss", "accuracy"}
    assert found["settings"] == {"task": "ReverseTask", **read_settings(directory)[1]}
    assert found["versions"] == versions()
    assert found["criterion"] == "val/accuracy:max"
    assert "git_commit" in found
    assert (run.task, run.state, run.steps, run.num_steps) == ("ReverseTask", "finished", 20, 20)
    assert (run.best_metric, run.best_value) == ("val/accuracy", found["val"]["accuracy"])
    assert run.seconds == found["train_seconds"] + found["eval_seconds"] + found["compile_seconds"]


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    process = subprocess.run(["git", *identity, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return process.stdout.strip()


def test_the_commit_is_that_of_the_repository_and_says_whether_files_were_changed(tmp_path, monkeypatch):
    (tmp_path / "__init__.py").write_text("")
    assert git_commit(tmp_path) is None
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "one"), ("tag", "v1")):
        git(tmp_path, *arguments)
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert len(commit) == 40
    (tmp_path / "new.txt").write_text("not tracked")
    monkeypatch.chdir("/")
    assert git_commit(tmp_path) == commit
    (tmp_path / "__init__.py").write_text("changed = True")
    assert git_commit(tmp_path) == f"{commit}-dirty"
    assert git_commit(Path(os.__file__).parent) is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert git_commit(tmp_path) is None
