"""Commands of the experiments: called in this process, which is fast, or started in a subprocess, as by a user."""

import contextlib
import gc
import io
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple
from unittest import mock

from repository import REPOSITORY


class Outcome(NamedTuple):
    """Result of a command."""

    status: int
    stdout: str
    stderr: str


@contextlib.contextmanager
def own_handlers() -> Iterator[None]:
    """Restore this process's signal and error handlers after a command, which does not restore them itself."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    hook = sys.unraisablehook
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for number, handler in previous.items():
            signal.signal(number, handler)


def path_of(script: str) -> str:
    """Return the path of a script in `experiments/`."""
    return str(REPOSITORY / "experiments" / script)


def typed(content: bytes) -> io.TextIOWrapper:
    """Standard input with this content."""
    return io.TextIOWrapper(io.BytesIO(content), encoding="ascii")  # whose encoding no command may depend on


def run_here(script: str, *arguments: object, stdin: str = "") -> None:
    """Run a script of `experiments/` in this process, which continues afterwards."""
    with (
        own_handlers(),
        mock.patch.object(sys, "argv", [path_of(script), *map(str, arguments)]),
        mock.patch.object(sys, "stdin", typed(stdin.encode(errors="surrogateescape"))),
        mock.patch.multiple(gc, freeze=mock.DEFAULT, unfreeze=mock.DEFAULT),
    ):
        runpy.run_path(path_of(script), run_name="__main__")


def call(script: str, *arguments: object, stdin: str = "") -> Outcome:
    """Run a script of `experiments/` in this process, and return its outcome."""
    stdout, stderr = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        try:
            run_here(script, *arguments, stdin=stdin)
        except SystemExit as stop:
            status = int(stop.code or 0)
    return Outcome(status, stdout.getvalue(), stderr.getvalue())


def command(script: str, parent: object, *settings: object) -> list[str]:
    """Return the command line of a script of `experiments/` with runs under `parent`."""
    return [sys.executable, path_of(script), f"--checkpoint-dir={parent}", *map(str, settings)]


def start(script: str, *arguments: object, **options) -> subprocess.CompletedProcess:
    """Run a script of `experiments/` in a subprocess, and wait for its end."""
    command = [sys.executable, path_of(script), *map(str, arguments)]
    return subprocess.run(command, **{"capture_output": True, "text": True, "timeout": 600, **options})
