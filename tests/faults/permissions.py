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

Prepare = Callable[[Case], str]  # makes the obstacle under the case's directory, and gives --checkpoint-dir


def _below_a_file(case: Case) -> str:
    (case.directory / "file").write_text("")
    return str(case.directory / "file" / "checkpoints")


def _a_file(case: Case) -> str:
    (case.directory / "file").write_text("")
    return str(case.directory / "file")


def _run_is_a_file(case: Case) -> str:
    (case.directory / TASK).write_text("")
    return str(case.directory)


def _checkpoints_is_a_file(case: Case) -> str:
    (case.directory / TASK).mkdir()
    (case.directory / TASK / "checkpoints").write_text("")
    return str(case.directory)


def _config_is_a_directory(case: Case) -> str:
    (case.directory / TASK / "config.json").mkdir(parents=True)
    return str(case.directory)


def _loop_of_links(case: Case) -> str:
    (case.directory / "loop").symlink_to("loop")
    return str(case.directory / "loop")


def _link_to_nothing(case: Case) -> str:
    (case.directory / TASK).symlink_to(case.directory / "missing" / "directory")
    return str(case.directory)


def _long_name(case: Case) -> str:
    return str(case.directory / ("x" * 300))


def _long_path(case: Case) -> str:
    return str(case.directory / "/".join(["y" * 200] * 30))


def _not_utf8(case: Case) -> str:
    return os.fsdecode(os.fsencode(case.directory) + b"/\xff\xfe")


def _in_proc(case: Case) -> str:
    return "/proc/self"


def _may_not_be_written(case: Case) -> str:
    return _unfinished_with(case, 0o555, 0o444)


def _may_not_be_read(case: Case) -> str:
    return _unfinished_with(case, 0o000, 0o000)


def _files_may_not_be_read(case: Case) -> str:
    return _unfinished_with(case, 0o755, 0o000)


def _unfinished_with(case: Case, directory_mode: int, file_mode: int) -> str:
    for parent in (case.directory, *list(case.directory.parents)[:2]):
        parent.chmod(0o755)
    shutil.copytree(case.material / "unfinished" / TASK, case.directory / TASK)
    for path in sorted((case.directory / TASK).rglob("*"), reverse=True):
        path.chmod(directory_mode if path.is_dir() else file_mode)
    (case.directory / TASK).chmod(directory_mode)
    return str(case.directory)


OBSTACLES: tuple[Prepare, ...] = (
    _may_not_be_written, _may_not_be_read, _files_may_not_be_read, _below_a_file, _a_file, _run_is_a_file,
    _checkpoints_is_a_file, _config_is_a_directory, _loop_of_links, _link_to_nothing, _long_name, _long_path, _not_utf8,
    _in_proc,
)  # fmt: skip


def run(case: Case) -> Outcome:
    """Train into a place that cannot be written: one line, status 2; or right, where it can."""
    prepare = OBSTACLES[case.number % len(OBSTACLES)]
    parent = prepare(case)
    fault = prepare.__name__.strip("_").replace("_", " ")
    # The superuser may write everything; the same process without its rights may not.
    as_nobody = prepare in OBSTACLES[:3]
    line = arguments(case.material, Path(parent))
    ended = processes.begin(case.directory / "output", "reverse.py", *line, as_nobody=as_nobody).wait()
    if ended.status == 0 and failure(ended) is None:
        if as_nobody or prepare is _in_proc:
            return Outcome(Verdict.WRONG, fault, "it succeeded where nothing can be written")
        differing = differences(Path(parent) / TASK, case.material / "undisturbed" / TASK)
        return Outcome(Verdict.WRONG if differing else Verdict.RIGHT, fault, "; ".join(differing.values()))
    if problem := failure(ended, status=2):
        return Outcome(Verdict.OBSCURE, fault, problem)
    return Outcome(Verdict.CLEAN, fault, ended.stderr.strip()[:200])
