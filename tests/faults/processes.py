"""Commands of the experiments in subprocesses.

A process is forked from one that has imported everything, so that it starts in milliseconds; signals of the first
seconds need a new interpreter, which takes as long as it does for a user.
"""

import contextlib
import io
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import jax
from commands import path_of

PATIENCE = 150  # seconds

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["sklearn.datasets", "matplotlib.figure", "faults.campaign"])


class Ended(NamedTuple):
    """How a process ended."""

    status: int | None  # negative: by that signal; None: it did not end
    stdout: str
    stderr: str


class Start(NamedTuple):
    """How a command is started."""

    anew: bool = False  # with a new interpreter, and without the limits below
    max_file_size: int | None = None  # bytes
    directory: Path | None = None  # in which it runs
    encoding: str | None = None  # of its standard output; None escapes what UTF-8 lacks
    unbuffered: bool = False  # as with PYTHONUNBUFFERED, where an encoding is given


USUAL = Start()


class Running:
    """A script of `experiments/`, or a module of the package, that runs.

    Its output comes through pipes, which no limit on files cuts off.
    """

    def __init__(self, name: str, *arguments: object, start: Start = USUAL) -> None:
        self._readers, writers = zip(context.Pipe(duplex=False), context.Pipe(duplex=False), strict=True)
        self._printed = bytearray(), bytearray()
        line = [name if name.startswith("transformer_jax.") else path_of(name), *map(str, arguments)]
        self._encoding = start.encoding or "utf-8"
        self._process = context.Process(target=_run, args=(writers, line, start))
        self._process.start()
        for writer in writers:
            writer.close()

    def has_ended(self) -> bool:
        """Whether the process has ended. What it has printed until now is read."""
        status = self._process.exitcode
        for reader, printed in zip(self._readers, self._printed, strict=True):
            while not reader.closed and reader.poll() and (chunk := os.read(reader.fileno(), 2**16)):
                printed += chunk
        return status is not None

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until its standard output contains a text a given number of times, or until it ends."""
        while not self.has_ended() and self._printed[0].count(text.encode()) < count:
            time.sleep(0.002)

    def close_output(self) -> None:
        """Read the beginning of its standard output, and then close it."""
        while self._process.exitcode is None and not self._readers[0].poll(0.01):
            pass
        os.read(self._readers[0].fileno(), 10)
        self._readers[0].close()

    def send(self, number: int, *, to_group: bool = False) -> None:
        """Send a signal; with `to_group`, also to its children."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if to_group else os.kill)(self._process.pid, number)

    def wait(self) -> Ended:
        """Wait for its end; after `PATIENCE` it is killed, with its children."""
        deadline = time.monotonic() + PATIENCE
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.005)
        status = self._process.exitcode
        if status is None:
            self.send(signal.SIGKILL, to_group=True)
        out, err = (bytes(printed) for printed in self._printed)
        return Ended(status, out.decode(self._encoding, errors="replace"), err.decode(errors="replace"))


def _run(writers: Sequence[Connection], line: list[str], start: Start) -> None:
    """Run the command in the forked process."""
    os.setsid()
    for number, writer in enumerate(writers, 1):
        os.dup2(writer.fileno(), number)
        writer.close()
    if start.anew:
        os.set_inheritable(0, True)
        os.execve(sys.executable, [sys.executable, *line], os.environ | {"PYTHONUNBUFFERED": "1"})
    line_by_line()
    if start.encoding is not None:
        raw = os.fdopen(1, "wb", buffering=0 if start.unbuffered else -1, closefd=False)
        sys.stdout = io.TextIOWrapper(raw, start.encoding, write_through=start.unbuffered)
        sys.__stdout__ = sys.stdout  # type: ignore[misc]
    if start.directory is not None:
        os.chdir(start.directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if start.max_file_size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails, as on a full disk
        jax.config.update("jax_enable_compilation_cache", False)  # else all cases would read what was cut off
        resource.setrlimit(resource.RLIMIT_FSIZE, (start.max_file_size, start.max_file_size))
    sys.argv = line
    if line[0].startswith("transformer_jax."):
        runpy.run_module(line[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(line[0], run_name="__main__")


def line_by_line() -> None:
    """Make this process write its output line by line, with any characters, to new descriptors 1 and 2."""
    for number, name in enumerate(("stdout", "stderr"), 1):
        setattr(sys, name, os.fdopen(number, "w", buffering=1, errors="backslashreplace", closefd=False))
