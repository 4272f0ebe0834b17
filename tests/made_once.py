"""Directories that are slow to make and that all processes of a test session share."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a directory filled by `make`; the first process that needs it makes it, the others wait.

    Args:
        factory: the fixture `tmp_path_factory`.
        name: unique name of the directory.
        make: fills the empty directory that it is given.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # a worker's directory is inside the one that all share
    directory, finished = base / name, base / f"{name}.finished"
    with FileLock(base / f"{name}.lock"):
        if not finished.exists():
            shutil.rmtree(directory, ignore_errors=True)  # left by a process that failed
            directory.mkdir()
            make(directory)
            finished.touch()
    return directory
