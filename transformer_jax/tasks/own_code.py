"""Classes and functions in a user's own files."""

import importlib.util
import sys
from pathlib import Path
from typing import Any


def imported(place: str) -> Any:  # a class or a function
    """Import what `FILE.py:NAME` names, which executes the file; errors of the file are not converted."""
    file, _, name = place.rpartition(":")
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))  # for the file's imports
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)
