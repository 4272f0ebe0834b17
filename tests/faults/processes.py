"""The experiments' commands in processes of their own.

A process is forked from one that has imported everything, so that it starts in milliseconds; signals of the first
seconds need one that begins with an empty interpreter, which takes as long as it does for a user.
"""

import contextlib
import multiprocessing
import os
import resource
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from commands import path_of

from faults.watch import text_streams

PATIENCE = 150  # seconds
NOBODY = 65534
PRELOADED = [
    "torch.utils.data", "jax", "flax.linen", "optax", "orbax.checkpoint", "tensorboard.summary",
    "sklearn.datasets",
    "matplotlib.figure", "faults.processes", "faults.worker", "transformer_jax.tasks.reverse",
    "transformer_jax.tasks.anomaly.task", "transformer_jax.tasks.translation.task", "transformer_jax.tasks.registry",
    "transformer_jax.tasks.language_model.task",
    "transformer_jax.runs.settings", "PIL.PngImagePlugin",
]  # fmt: skip

context = multiprocessing.get_context("forkserver")


class Ended(NamedTuple):
    """How a process ended."""

    status: int | None  # negative: by that signal; None: it did not end
    stdout: str
    stderr: str


class Running:
    """A command that runs; standard output and error go to files in `output`."""

    def __init__(self, pid: int, poll: Callable[[], int | None], output: Path) -> None:
        self.pid = pid
        self.poll = poll  # the status, None while it runs
        self.output = output

    def stdout(self) -> str:
        """Its standard output until now."""
        return (self.output / "stdout").read_text(errors="replace")

    def send(self, number: int, *, to_group: bool = False) -> None:
        """Send a signal, to its children too with `to_group`."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(self.pid, number)

    def wait(self, seconds: float = PATIENCE) -> Ended:
        """Wait for its end; after `seconds` it is killed, with its children."""
        deadline = time.monotonic() + seconds
        while (status := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if status is None:
            self.send(signal.SIGKILL, to_group=True)
            while self.poll() is None:
                time.sleep(0.005)
        return Ended(status, self.stdout(), (self.output / "stderr").read_text(errors="replace"))


class Limits(NamedTuple):
    """Under which a command runs."""

    max_file_size: int | None = None  # bytes
    as_nobody: bool = False  # without the rights of root
    ignored: int | None = None  # a signal that is ignored from the start, as under `nohup`


NO_LIMITS = Limits()


def begin(output: Path, name: str, *arguments: object, anew: bool = False, limits: Limits = NO_LIMITS) -> Running:
    """Start a script of `experiments/`.

    Args:
        output: directory for its standard output and error.
        name: of the script.
        arguments: of the command line.
        anew: with a new interpreter, and without limits.
        limits: of a command that is not begun anew.
    """
    output.mkdir(parents=True, exist_ok=True)
    texts = list(map(str, arguments))
    if anew:
        with (output / "stdout").open("wb") as out, (output / "stderr").open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, path_of(name), *texts],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        return Running(process.pid, process.poll, output)
    context.set_forkserver_preload(PRELOADED)
    for stream in ("stdout", "stderr"):
        (output / stream).touch()
    forked = context.Process(target=_run, args=(output, path_of(name), texts, limits))
    forked.start()
    pid = forked.pid
    assert pid is not None

    def poll() -> int | None:
        forked.join(0)
        return forked.exitcode

    return Running(pid, poll, output)


def run(output: Path, name: str, *arguments: object) -> Ended:
    """Run a script of `experiments/` to its end."""
    return begin(output, name, *arguments).wait()


def _run(output: Path, path: str, arguments: list[str], limits: Limits) -> None:
    """Become the command."""
    os.setsid()
    for number, stream in ((1, "stdout"), (2, "stderr")):
        descriptor = os.open(output / stream, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout, sys.stderr = text_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if limits.ignored is not None:
        signal.signal(limits.ignored, signal.SIG_IGN)
    if limits.max_file_size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails, as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.max_file_size, limits.max_file_size))
    if limits.as_nobody and os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    sys.argv = [path, *arguments]
    runpy.run_path(path, run_name="__main__")
