"""Where results come from: versions of the libraries, and the commit of the package."""

import os
import subprocess
from pathlib import Path

import jax
import pytest

from transformer_jax.runs.provenance import git_commit, provenance, versions


def git(directory: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c")
    process = subprocess.run(["git", *identity, *arguments], cwd=directory, capture_output=True, text=True, check=True)
    return process.stdout.strip()


@pytest.fixture
def package(tmp_path) -> Path:
    """A package in a repository with one commit."""
    directory = tmp_path / "package"
    directory.mkdir()
    (directory / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    git(tmp_path, "tag", "v1")
    return directory


def test_the_versions_are_those_of_the_libraries_that_compute():
    found = versions()
    assert list(found) == ["python", "jax", "jaxlib", "flax", "optax", "numpy", "torch", "transformer_jax"]
    assert found["jax"] == jax.__version__


def test_a_library_that_is_not_installed_has_no_version(monkeypatch):
    monkeypatch.setattr("transformer_jax.runs.provenance.LIBRARIES", ("no-such-library",))
    assert versions()["no_such_library"] is None


def test_the_commit_is_that_of_the_repository_and_says_whether_files_were_changed(package, tmp_path):
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert len(commit) == 40
    assert git_commit(package) == commit
    (tmp_path / "new.txt").write_text("not tracked")
    assert git_commit(package) == commit
    (package / "__init__.py").write_text("changed = True")
    assert git_commit(package) == f"{commit}-dirty"


def test_the_working_directory_and_gits_variables_change_nothing(package, tmp_path, monkeypatch):
    commit = git_commit(package)
    monkeypatch.chdir("/")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert git_commit(package) == commit is not None


def test_there_is_no_commit_outside_of_a_repository_nor_for_a_package_that_is_installed_inside_one(package, tmp_path):
    installed = tmp_path / ".venv" / "package"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert git_commit(installed) is None
    assert git_commit(Path(os.__file__).parent) is None
    assert git_commit(tmp_path / "nowhere") is None


def test_without_git_there_is_no_commit_and_no_error(package, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    found = provenance({"task": "Task", "lr": 0.25})
    assert (found["settings"], found["git_commit"]) == ({"task": "Task", "lr": 0.25}, None)
    assert found.keys() == {"settings", "versions", "git_commit"}
    assert git_commit(package) is None
