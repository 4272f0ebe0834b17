"""The files beside the package agree with each other."""

import re
import tomllib

import pytest
from repository import REPOSITORY

VERSION = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]


@pytest.mark.parametrize(
    ("file", "pattern"), [("CITATION.cff", r"^version: (.+)$"), ("CHANGELOG.md", r"^## \[(\d.*?)\] – ")]
)
def test_the_newest_version_is_that_of_the_package(file, pattern):
    assert re.findall(pattern, (REPOSITORY / file).read_text(encoding="utf-8"), re.MULTILINE)[0] == VERSION
