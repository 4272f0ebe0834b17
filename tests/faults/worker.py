"""Worker processes that run cases one after another; one that hangs or dies is replaced."""

import importlib
import multiprocessing.connection as pipes
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from faults import audit
from faults.cases import Case, Outcome, Verdict
from faults.processes import PRELOADED, context
from faults.watch import GIB

MEMORY = 8 * GIB  # that one worker may allocate
MOST_CASES = 300  # that one worker runs: JAX keeps every compiled program
MODULES = {
    "kills": "kills", "signals": "signals", "full-disk": "full_disk", "permissions": "permissions",
    "writers": "writers", "vanishing": "vanishing", "corruptions": "corruptions", "untrusted": "untrusted",
    "command-lines": "command_lines",
}  # fmt: skip
PATIENCE = {"kills": 600, "signals": 600, "full-disk": 400, "permissions": 200, "writers": 400, "vanishing": 400}
USUAL_PATIENCE = 60  # seconds for a case within the worker


def run_case(case: Case) -> Outcome:
    """Run one case in this process; its directory is removed."""
    shutil.rmtree(case.directory, ignore_errors=True)
    case.directory.mkdir(parents=True)
    previous, tempfile.tempdir = tempfile.tempdir, str(case.directory)
    try:
        outcome: Outcome = importlib.import_module(f"faults.{MODULES[case.kind]}").run(case)
    except Exception:
        outcome = Outcome(Verdict.OBSCURE, "the campaign itself failed", traceback.format_exc().strip()[-600:])
    finally:
        tempfile.tempdir = previous
        shutil.rmtree(case.directory, ignore_errors=True)
    return outcome


def run_cases(cases: Sequence[Case], num_workers: int) -> Iterator[tuple[Case, Outcome]]:
    """Run cases in worker processes; gives each with its outcome, in the order in which they end."""
    context.set_forkserver_preload(PRELOADED)
    waiting = list(reversed(cases))
    workers = [_Worker() for _ in range(min(num_workers, len(cases)))]
    try:
        for worker in workers:
            worker.give(waiting.pop())
        while busy := [worker for worker in workers if worker.case is not None]:
            pipes.wait([worker.pipe for worker in busy], timeout=0.5)
            for worker in busy:
                case = worker.case
                if case is not None and (outcome := worker.outcome()) is not None:
                    yield case, outcome
                    if waiting:
                        worker.give(waiting.pop())
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    def __init__(self) -> None:
        self.case: Case | None = None
        self._begin()

    def _begin(self) -> None:
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,))
        self._process.start()
        theirs.close()
        self._num_cases = 0

    def give(self, case: Case) -> None:
        if self._num_cases >= MOST_CASES or not self._process.is_alive():
            self.end()
            self._begin()
        self.case = case
        self._num_cases += 1
        self._deadline = time.monotonic() + PATIENCE.get(case.kind, USUAL_PATIENCE)
        self.pipe.send(case)

    def outcome(self) -> Outcome | None:
        """Of the case, None while it runs."""
        try:
            outcome: Outcome | None = self.pipe.recv() if self.pipe.poll() else None
        except (EOFError, OSError):
            outcome = Outcome(Verdict.OBSCURE, "?", f"the process died with status {self._died()}")
        if outcome is None and time.monotonic() > self._deadline:
            outcome = Outcome(Verdict.OBSCURE, "?", "it did not end")
            self.end()
            self._begin()
        if outcome is not None:
            self.case = None
        return outcome

    def _died(self) -> int | None:
        self._process.join(5)
        return self._process.exitcode

    def end(self) -> None:
        """End the process; while it runs a case it is killed."""
        self.pipe.close()
        if self.case is None:
            self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


def _work(pipe: Any) -> None:
    """Run the cases that come through the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign decides
    with open(os.devnull, "r+b") as nothing:
        for number in (0, 1, 2):
            os.dup2(nothing.fileno(), number)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(Path(tempfile.gettempdir()))
    audit.install()
    while True:
        try:
            case = pipe.recv()
        except (EOFError, OSError):
            return
        outcome = run_case(case)
        try:
            pipe.send(outcome)
        except OSError:  # the campaign was stopped
            return
