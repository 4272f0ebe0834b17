"""An audit hook that notes what a case executes, and what it writes outside of its own directories."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.training.results import GIT

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# Events by the positions of the paths that they change, and of the open directories that these are relative to.
CHANGES: dict[str, dict[int, int | None]] = {
    "os.mkdir": {0: 2}, "os.remove": {0: 1}, "os.rmdir": {0: 1}, "os.rename": {0: 2, 1: 3}, "os.link": {1: 3},
    "os.symlink": {1: 2}, "os.truncate": {0: None}, "os.chmod": {0: 2}, "os.chown": {0: 3}, "shutil.rmtree": {0: 1},
}  # fmt: skip
EXECUTES = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "pty.spawn", "os.startfile"}
OUR_PROGRAMS = {GIT}  # for the commit in `results.json`
DANGEROUS = {"os", "posix", "nt", "subprocess", "builtins", "sys", "shutil", "runpy", "importlib", "faults.canary"}
HARMLESS = ("/dev/", "/proc/")

_violations: list[str] = []
_allowed: tuple[str, ...] = ()
_forbidden = "\0"  # nothing below this path may even be read
_watches = False


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watches:
        return
    if event in EXECUTES and not (event == "subprocess.Popen" and tuple(arguments[1]) in OUR_PROGRAMS):
        _violations.append(f"executed: {event} {arguments[:2]!r}"[:300])
    elif event == "pickle.find_class" and str(arguments[0]).split(".")[0] in DANGEROUS | {"faults"}:
        _violations.append(f"a pickle asked for {arguments[0]}.{arguments[1]} and got it")
    elif event == "open" and isinstance(arguments[0], str | bytes):
        path, _, flags = arguments
        if (flags or 0) & WRITES and not _is_own(path):
            _violations.append(f"written outside: {os.fsdecode(path)}")
        elif _absolute(path).startswith(_forbidden):
            _violations.append(f"read: {os.fsdecode(path)}")
    elif event in CHANGES:
        for position, base in CHANGES[event].items():
            if isinstance(arguments[position], str | bytes | os.PathLike):
                path = os.path.join(_directory(arguments, base), os.fsdecode(arguments[position]))
                if not _is_own(path):
                    _violations.append(f"{event} outside: {path}")


def _directory(arguments: tuple[Any, ...], position: int | None) -> str:
    """The open directory among an event's arguments; "" for the working directory."""
    descriptor = arguments[position] if position is not None and position < len(arguments) else None
    if not isinstance(descriptor, int) or descriptor < 0:
        return ""
    return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _is_own(path: Any) -> bool:
    return _absolute(path).startswith((*_allowed, *HARMLESS))


@contextlib.contextmanager
def audited(*allowed: Path, forbidden: Path | None = None) -> Iterator[list[str]]:
    """The violations in the block, a list that grows.

    Args:
        allowed: directories that may be written.
        forbidden: a directory that may not be read.
    """
    global _allowed, _forbidden, _watches
    _violations.clear()
    _allowed, _forbidden = tuple(map(str, allowed)), "\0" if forbidden is None else str(forbidden)
    _watches = True
    try:
        yield _violations
    finally:
        _watches = False


def install() -> None:
    """Begin to listen; a process can't end it."""
    sys.addaudithook(_hook)
