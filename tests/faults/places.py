"""Places where a run can't write, by permission, by kind, by name."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from faults.cases import Case, Outcome, Verdict
from faults.interruptions import failure
from faults.material import TASK, arguments
from faults.processes import Running, Start


def _below(directory: Path, name: str, make: Callable[[Path], object]) -> Path:
    """Make an obstacle below a directory, and give the directory."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    return directory


def _unfinished_run(case: Case, directory_mode: int, file_mode: int) -> Path:
    for parent in (case.directory, *list(case.directory.parents)[:2]):
        parent.chmod(0o755)
    run = Path(shutil.copytree(case.material / "unfinished" / TASK, case.directory / TASK))
    for path in (*sorted(run.rglob("*"), reverse=True), run):
        path.chmod(directory_mode if path.is_dir() else file_mode)
    return case.directory


# Each makes an obstacle in the case's directory, and gives --checkpoint-dir.
OBSTACLES: dict[str, Callable[[Case], Path]] = {
    "may not be written": lambda case: _unfinished_run(case, 0o555, 0o444),
    "may not be read": lambda case: _unfinished_run(case, 0o000, 0o000),
    "files may not be read": lambda case: _unfinished_run(case, 0o755, 0o000),
    "below a file": lambda case: _below(case.directory, "file", Path.touch) / "file" / "checkpoints",
    "a file": lambda case: _below(case.directory, "file", Path.touch) / "file",
    "the run is a file": lambda case: _below(case.directory, TASK, Path.touch),
    "checkpoints is a file": lambda case: _below(case.directory, f"{TASK}/checkpoints", Path.touch),
    "config is a directory": lambda case: _below(case.directory, f"{TASK}/config.json", Path.mkdir),
    "a loop of links": lambda case: _below(case.directory, "loop", lambda path: path.symlink_to("loop")) / "loop",
    "a link to nothing": lambda case: _below(case.directory, TASK, lambda path: path.symlink_to("missing/directory")),
    "a long name": lambda case: case.directory / ("x" * 300),
    "a long path": lambda case: case.directory / "/".join(["y" * 200] * 30),
    "not UTF-8": lambda case: Path(os.fsdecode(os.fsencode(case.directory) + b"/\xff\xfe")),
    "in /proc": lambda case: Path("/proc/self"),
}


def refuse_to_write(case: Case) -> Outcome:
    """Train into a place that cannot be written: one line, status 2."""
    fault, make = list(OBSTACLES.items())[case.number % len(OBSTACLES)]
    # The superuser may write everything; the same process without its rights may not.
    start = Start(as_nobody=fault.endswith(("written", "read")))
    ended = Running("reverse.py", *arguments(make(case)), start=start).wait()
    if failure(ended) is None:
        return Outcome(Verdict.WRONG, fault, "it succeeded where nothing can be written")
    if problem := failure(ended, status=2):
        return Outcome(Verdict.OBSCURE, fault, problem)
    return Outcome(Verdict.CLEAN, fault, ended.stderr.strip()[:200])
