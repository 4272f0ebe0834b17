"""The docstrings of the standard library: which are read, in what order, and that nothing is imported or run."""

import hashlib
import inspect
import json
import sys
from pathlib import Path

import pytest

from transformer_jax import InputError
from transformer_jax.tasks.language_model.docstrings import library_docstrings

JSON = '''"""First.

    Indented.
"""
raise RuntimeError("this module must not be run")


def f():
    "Second."


class C:
    """Third."""

    async def g(self):
        r"""Fourth \\d."""

    def without(self): ...


def again():
    """Second."""
'''


def library(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = (root / name.replace("__", "/")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return root


def test_docstrings_are_read_in_the_order_of_lines_each_once_and_without_running_a_module(tmp_path):
    root = library(tmp_path, json=JSON)
    assert library_docstrings(root) == ("First.\n\nIndented.", "Second.", "Third.", "Fourth \\d.")


def test_only_the_librarys_own_modules_are_read_and_no_tests(tmp_path):
    others = dict.fromkeys(["email__test__x", "requests", "site-packages__json"], "'no'")
    root = library(tmp_path, json="'a'", email__parser="'b'", **others)
    assert set(library_docstrings(root)) == {"a", "b"}


def test_modules_come_in_the_order_of_a_digest_of_their_names(tmp_path):
    names = ["abc", "ast", "bisect", "cmd", "copy"]
    expected = sorted(names, key=lambda name: hashlib.sha256(f"{name}.py".encode()).digest())
    assert expected != names
    assert library_docstrings(library(tmp_path, **{name: f"'{name}'" for name in names})) == tuple(expected)


def test_a_file_that_is_no_python_is_left_out(tmp_path):
    root = library(tmp_path, json="'a'", abc="def (")
    (root / "ast.py").write_bytes(b"\xff\x00")
    assert library_docstrings(root) == ("a",)


def test_a_library_without_source_is_an_error(tmp_path):
    with pytest.raises(InputError, match="has no source of Python's standard library; give a text file, data=…"):
        library_docstrings(tmp_path)


@pytest.mark.slow
def test_the_running_interpreters_library_is_large_and_known():
    found = library_docstrings()
    assert sum(map(len, found)) > 500_000
    assert {inspect.getdoc(json), inspect.getdoc(json.JSONDecoder)} <= set(found)
    assert "antigravity" not in sys.modules  # importing it opens a browser
