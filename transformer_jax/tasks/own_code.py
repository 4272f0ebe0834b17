"""Classes and functions in a user's own files."""

import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any


def imported(place: str) -> Any:  # a class or a function
    """Import what `FILE.py:NAME` names, which executes the file; errors of the file are not converted."""
    file, _, name = place.rpartition(":")
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))  # for the file's imports
    loader = SourceFileLoader(f"own_{path.stem}", str(path))
    module = ModuleType(loader.name)
    module.__file__ = loader.path
    sys.modules[loader.name] = module
    loader.exec_module(module)
    return getattr(module, name)
