"""The site of `docs/` builds without warnings and needs no other host; `make site` runs this."""

import re
import subprocess
import sys

import pytest
from repository import REPOSITORY


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("mkdocs_jupyter")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    outcome = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    page = (tmp_path / "site/api/tasks.html").read_text()
    assert "numbers in a sequence" in page  # the comment behind a field
    assert not list((tmp_path / "site").rglob("*.py"))
    notebook = (tmp_path / "site/tutorial.html").read_text()
    assert re.findall(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]+>", notebook) == []
