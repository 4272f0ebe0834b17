"""The files beside the package agree with each other, and the tests with the machine."""

import re
import tomllib
from types import SimpleNamespace

import psutil
import pytest
from packaging.requirements import Requirement
from repository import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
PYTHONS = ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("CITATION.cff", r"^version: (.+)$"),
        ("CHANGELOG.md", r"^## \[(\d.*?)\] – "),
        ("transformer_jax/__init__.py", r'^__version__ = "(.+)"$'),
    ],
)
def test_the_newest_version_is_that_of_the_package(file, pattern):
    assert re.findall(pattern, (REPOSITORY / file).read_text(encoding="utf-8"), re.MULTILINE)[0] == VERSION


@pytest.mark.parametrize("python", PYTHONS)
def test_the_tested_versions_are_allowed_on_each_python(python):
    def for_python(lines):
        requirements = [Requirement(line) for line in lines]
        environment = {"python_version": python}
        return {r.name: r.specifier for r in requirements if r.marker is None or r.marker.evaluate(environment)}

    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    tested = for_python(line for line in lines if not line.startswith("#"))
    for name, allowed in for_python(PROJECT["dependencies"]).items():
        (pinned,) = tested[name]
        assert allowed.contains(pinned.version), name
    assert tested["jax"] == tested["jaxlib"]


def test_the_same_pythons_are_named_everywhere():
    classifiers = [line.split(" :: ")[-1] for line in PROJECT["classifiers"] if ":: Python ::" in line]
    workflow = (REPOSITORY / ".github" / "workflows" / "test.yml").read_text()
    in_scripts = (REPOSITORY / ".ci" / "find-pythons").read_text()
    assert classifiers == re.findall(r'"([\d.]+)"', workflow) == re.findall(r"3\.\d+", in_scripts) == PYTHONS


@pytest.mark.parametrize(("cores", "gigabytes", "workers"), [(2, 24, 2), (8, 8, 5), (8, 1, 1)])
def test_the_tests_have_as_many_workers_as_cores_and_memory_allow(cores, gigabytes, workers, pytestconfig, monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: cores)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=gigabytes * 10**9))
    assert pytestconfig.hook.pytest_xdist_auto_num_workers(config=pytestconfig) == workers
