"""Worker processes that run cases one after another; one that hangs or dies is replaced."""

import importlib
import os
import resource
import shutil
import signal
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from pathlib import Path

from faults import audit
from faults.cases import Case, Outcome, Verdict
from faults.processes import PRELOADED, context
from faults.watch import GIB

MEMORY = 8 * GIB  # that one worker may allocate
MOST_CASES = 300  # that one worker runs: JAX keeps every compiled program
PATIENCE = {"kills": 600, "signals": 600, "full-disk": 400, "permissions": 200}
USUAL_PATIENCE = 60  # seconds for a case within the worker


def run_case(case: Case) -> Outcome:
    """Run one case in this process; its directory is removed."""
    shutil.rmtree(case.directory, ignore_errors=True)
    case.directory.mkdir(parents=True)
    previous, tempfile.tempdir = tempfile.tempdir, str(case.directory)
    try:
        outcome: Outcome = importlib.import_module(f"faults.{case.kind.replace('-', '_')}").run(case)
    except Exception:
        outcome = Outcome(Verdict.OBSCURE, "the campaign itself failed", traceback.format_exc().strip()[-600:])
    finally:
        tempfile.tempdir = previous
        shutil.rmtree(case.directory, ignore_errors=True)
    return outcome


def run_cases(cases: Sequence[Case], num_workers: int) -> Iterator[tuple[Case, Outcome]]:
    """Run cases in worker processes; gives each with its outcome, in the order in which they end."""
    context.set_forkserver_preload(PRELOADED)
    workers = [_Worker() for _ in range(num_workers)]
    idle = list(workers)

    def run(case: Case) -> tuple[Case, Outcome]:
        worker = idle.pop()  # there are as many as threads
        outcome = worker.run(case)
        idle.append(worker)
        return case, outcome

    with ThreadPoolExecutor(num_workers) as threads:
        futures = [threads.submit(run, case) for case in cases]
        try:
            yield from (future.result() for future in as_completed(futures))
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.end()


class _Worker:
    """One process, and another after it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pool = ProcessPoolExecutor(1, context, _prepare, max_tasks_per_child=MOST_CASES)

    def run(self, case: Case) -> Outcome:
        try:
            return self._pool.submit(run_case, case).result(PATIENCE.get(case.kind, USUAL_PATIENCE))
        except BrokenProcessPool:
            outcome = Outcome(Verdict.OBSCURE, "?", "the process died")
        except TimeoutError:
            outcome = Outcome(Verdict.OBSCURE, "?", "it did not end")
        self.end()
        self._begin()
        return outcome

    def end(self) -> None:
        """Kill the process, whatever it does."""
        for process in list((self._pool._processes or {}).values()):
            process.kill()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _prepare() -> None:
    """Of a worker: no output, limits, the audit."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the campaign decides
    with open(os.devnull, "r+b") as nothing:
        for number in (0, 1, 2):
            os.dup2(nothing.fileno(), number)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(Path(tempfile.gettempdir()))
    # Its socket lies in the directory of temporary files, which during a case is one that is removed.
    context.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    audit.install()
