"""Where results come from: versions of the libraries, and the commit of the package."""

import os
import subprocess
from pathlib import Path

from transformer_jax.training.results import git_commit


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
