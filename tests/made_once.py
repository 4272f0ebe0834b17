"""Directories that take long to make and that all processes of the test run read."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The directory that `make` fills: the first process that needs it makes it, the others wait.

    Args:
        factory: the fixture `tmp_path_factory`.
        name: of the directory, one for each purpose.
        make: gets the empty directory.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # that of a worker lies in that of all
    directory, finished = base / name, base / f"{name}.finished"
    with FileLock(base / f"{name}.lock"):
        if not finished.exists():
            shutil.rmtree(directory, ignore_errors=True)  # of a process that failed
            directory.mkdir()
            make(directory)
            finished.touch()
    return directory
