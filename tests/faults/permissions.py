"""Paths that cannot be written or read: by permission, by kind, by name."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from faults import processes
from faults.cases import Case, Outcome, Verdict
from faults.comparing import differences
from faults.kills import failure
from faults.material import TASK, arguments


def _with(case: Case, path: Path, make: Callable[[Path], object]) -> Path:
    """Make the obstacle, and give the case's directory as the parent of runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    return case.directory


def _file(path: Path) -> Path:
    path.write_text("")
    return path


def _unfinished_with(case: Case, directory_mode: int, file_mode: int) -> Path:
    for parent in (case.directory, *list(case.directory.parents)[:2]):
        parent.chmod(0o755)
    shutil.copytree(case.material / "unfinished" / TASK, case.directory / TASK)
    for path in sorted((case.directory / TASK).rglob("*"), reverse=True):
        path.chmod(directory_mode if path.is_dir() else file_mode)
    (case.directory / TASK).chmod(directory_mode)
    return case.directory


def _loop_of_links(case: Case) -> Path:
    (case.directory / "loop").symlink_to("loop")
    return case.directory / "loop"


# Each makes the obstacle under the case's directory, and gives --checkpoint-dir.
OBSTACLES: dict[str, Callable[[Case], Path]] = {
    "may not be written": lambda case: _unfinished_with(case, 0o555, 0o444),
    "may not be read": lambda case: _unfinished_with(case, 0o000, 0o000),
    "files may not be read": lambda case: _unfinished_with(case, 0o755, 0o000),
    "below a file": lambda case: _file(case.directory / "file") / "checkpoints",
    "a file": lambda case: _file(case.directory / "file"),
    "the run is a file": lambda case: _with(case, case.directory / TASK, _file),
    "checkpoints is a file": lambda case: _with(case, case.directory / TASK / "checkpoints", _file),
    "config is a directory": lambda case: _with(case, case.directory / TASK / "config.json", Path.mkdir),
    "a loop of links": _loop_of_links,
    "a link to nothing": lambda case: _with(
        case, case.directory / TASK, lambda path: path.symlink_to(case.directory / "missing" / "directory")
    ),
    "a long name": lambda case: case.directory / ("x" * 300),
    "a long path": lambda case: case.directory / "/".join(["y" * 200] * 30),
    "not UTF-8": lambda case: Path(os.fsdecode(os.fsencode(case.directory) + b"/\xff\xfe")),
    "in /proc": lambda case: Path("/proc/self"),
}


def run(case: Case) -> Outcome:
    """Train into a place that cannot be written: one line, status 2; or right, where it can."""
    fault = list(OBSTACLES)[case.number % len(OBSTACLES)]
    parent = OBSTACLES[fault](case)
    # The superuser may write everything; the same process without its rights may not.
    as_nobody = fault.endswith(("written", "read"))
    line, limits = arguments(case.material, parent), processes.Limits(as_nobody=as_nobody)
    ended = processes.begin(case.directory / "output", "reverse.py", *line, limits=limits).wait()
    if ended.status == 0 and failure(ended) is None:
        if as_nobody or fault == "in /proc":
            return Outcome(Verdict.WRONG, fault, "it succeeded where nothing can be written")
        differing = differences(parent / TASK, case.material / "undisturbed" / "reverse" / TASK)
        return Outcome(Verdict.WRONG if differing else Verdict.RIGHT, fault, "; ".join(differing.values()))
    if problem := failure(ended, status=2):
        return Outcome(Verdict.OBSCURE, fault, problem)
    return Outcome(Verdict.CLEAN, fault, ended.stderr.strip()[:200])
