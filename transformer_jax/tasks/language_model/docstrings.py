"""The docstrings of Python's standard library, read from its source files without importing or running them."""

import ast
import hashlib
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from transformer_jax.errors import InputError

SEPARATOR = "\n\n\n"  # after each docstring; inside them, two empty lines in a row are rare
# directories without documentation
LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "__pycache__"}
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def library_docstrings(library: Path | None = None) -> tuple[str, ...]:
    """The docstrings of all modules, classes and functions, each once; they depend only on the interpreter's files.

    Docstrings of one module are adjacent, in the order of its lines. Modules are ordered by a digest of their names, so
    that a part of the text is a sample of the library, and not the end of the alphabet.

    Args:
        library: directory of the standard library; None for that of the running interpreter.

    Raises:
        InputError: there is no source of the library, e.g. because only compiled files are installed.
    """
    root = Path(sysconfig.get_path("stdlib")) if library is None else library
    seen: dict[str, None] = {}
    for module in sorted(_modules(root), key=_digest):
        seen.update(dict.fromkeys(_docstrings_of(root / module)))
    if not seen:
        raise InputError(
            f"{root} has no source of Python's standard library; give a text file, data=…"
        )
    return tuple(seen)


def _digest(module: str) -> bytes:
    return hashlib.sha256(module.encode()).digest()


def _modules(root: Path) -> Iterator[str]:
    """The library's source files, relative to its directory."""
    for name in sorted(sys.stdlib_module_names):
        if (root / f"{name}.py").is_file():
            yield f"{name}.py"
        for path in (root / name).rglob("*.py"):
            relative = path.relative_to(root)
            if not LEFT_OUT.intersection(relative.parts):
                yield relative.as_posix()


def _docstrings_of(path: Path) -> Iterator[str]:
    """The docstrings of a source file, as `inspect.getdoc` shows them; none if the file is not valid Python."""
    try:
        with warnings.catch_warnings():  # about old escapes in strings
            warnings.simplefilter("ignore")
            tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    documented = [node for node in ast.walk(tree) if isinstance(node, Documented)]
    for node in sorted(documented, key=lambda node: getattr(node, "lineno", 0)):
        text = ast.get_docstring(node)
        if text:
            yield text
