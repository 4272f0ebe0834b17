"""A disk that fills up while a run is written: a small tmpfs, or a limit on the size of files."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from faults import processes
from faults.cases import Case, Outcome, Verdict
from faults.kills import evaluated_steps, failure, judge_resumed
from faults.material import arguments

KIB = 1024


def run(case: Case) -> Outcome:
    """Train where there is too little room, make room, and train on."""
    rng = case.rng()
    if case.number % 2 == 0 and _can_mount(case.directory):
        size = int(2 ** rng.uniform(2, 10)) * KIB
        with _tmpfs(case.directory / "small", size) as disk:
            inner = case._replace(directory=disk)
            ended = processes.begin(case.directory / "output", "reverse.py", *arguments(case.material, disk)).wait()
            _mount("-o", "remount,size=256m", disk)
            return _judge(inner, f"a disk of {size // KIB} KiB", ended)
    size = int(2 ** rng.uniform(0, 8)) * KIB
    ended = processes.begin(
        case.directory / "output", "reverse.py", *arguments(case.material, case.directory), max_file_size=size
    ).wait()
    return _judge(case, f"files of at most {size // KIB} KiB", ended)


def _judge(case: Case, fault: str, ended: processes.Ended) -> Outcome:
    """The disk may have been large enough; else a line that says so, status 2, and nothing lost."""
    if ended.status == 0 and failure(ended) is None:
        return judge_resumed(case, fault, [0, *evaluated_steps(ended.stdout)])
    # Threads of other libraries may print their own tracebacks before our line.
    if ended.status != 2 or "reverse.py: error: " not in ended.stderr:
        return Outcome(Verdict.OBSCURE, fault, failure(ended, status=2) or ended.stderr.strip()[-300:])
    resumed = judge_resumed(case, fault, [0, *evaluated_steps(ended.stdout)])
    if resumed.verdict == Verdict.RIGHT:
        return Outcome(Verdict.CLEAN, fault, ended.stderr.strip()[:200])
    return resumed


def _mount(*arguments: object) -> bool:
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True).returncode == 0


def _can_mount(directory: Path) -> bool:
    with contextlib.suppress(OSError), _tmpfs(directory / "trial", 64 * KIB) as disk:
        return disk.is_mount()
    return False


@contextlib.contextmanager
def _tmpfs(disk: Path, size: int) -> Iterator[Path]:
    disk.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "none", disk)
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], capture_output=True)
