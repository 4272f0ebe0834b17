"""The campaign: all cases of all kinds in worker processes, and the table of their verdicts for docs/reliability.md."""

import argparse
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

from repository import QUICKLY, REPOSITORY
from tqdm import tqdm

from faults import command_lines, corruptions, interruptions, outputs, pretrained, texts
from faults.cases import FAILURES, Case, Outcome, Verdict
from faults.material import make_material
from faults.processes import context
from faults.watch import GIB, capture_output, install_audit

MEMORY = 8 * GIB  # that one worker may allocate
MOST_CASES = 300  # that one worker runs: JAX keeps every compiled program


class Kind(NamedTuple):
    """A kind of fault."""

    run: Callable[[Case], Outcome]
    usual_count: int  # of cases
    patience: int = 60  # seconds that a case may take


KINDS = {
    "kills": Kind(interruptions.kill, 30, 600),
    "signals": Kind(interruptions.send_signal, 30, 600),
    "full-disk": Kind(interruptions.fill_disk, 10, 400),
    "corruptions": Kind(corruptions.run, 200),
    "pretrained": Kind(pretrained.run, 200),
    "command-lines": Kind(command_lines.run, 600),
    "names": Kind(texts.name_run, 30, 400),
    "encodings": Kind(texts.encode_output, 60, 400),
    "outputs": Kind(outputs.write_output, 60, 400),
}
ENVIRONMENT = {
    **QUICKLY,
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "4",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}


def run_campaign(
    seed: int, chosen: Iterable[tuple[str, int]], work_dir: Path, num_workers: int = 2
) -> dict[tuple[str, int], Outcome]:
    """Run cases, chosen by kind and number, and return their outcomes."""
    path = os.pathsep.join(filter(None, (str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH"))))
    caches = {"JAX_COMPILATION_CACHE_DIR": str(work_dir / "compiled"), "MPLCONFIGDIR": str(work_dir / "matplotlib")}
    os.environ.update(ENVIRONMENT | caches | {"PYTHONPATH": path})  # of all processes
    material = make_material(work_dir)
    cases = [Case(kind, n, seed, material, work_dir / "cases" / f"{kind}-{n}") for kind, n in chosen]
    outcomes: dict[tuple[str, int], Outcome] = {}
    for case, outcome in tqdm(_run_cases(cases, num_workers), total=len(cases), disable=None):
        outcomes[case.kind, case.number] = outcome
        if outcome.verdict in FAILURES or len(cases) == 1:
            again = f'make faults ARGS="--only {case.kind}:{case.number} --seed {seed}"'
            tqdm.write(f"{outcome.verdict}: {outcome.fault}: {outcome.seen}\n    {again}")
    return outcomes


def table(outcomes: Mapping[tuple[str, int], Outcome]) -> str:
    """Format a Markdown table with a row per kind and a column per verdict."""
    counts = {kind: Counter(outcome.verdict for (of, _), outcome in outcomes.items() if of == kind) for kind in KINDS}
    counts["all"] = sum(counts.values(), Counter())
    rows = [["kind", "tried", *Verdict], ["---", *["---:"] * (1 + len(Verdict))]]
    for kind, of_kind in counts.items():
        if of_kind:
            numbers = [of_kind.total(), *(of_kind[verdict] for verdict in Verdict)]
            rows.append([kind.replace("-", " "), *map(str, numbers)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _run_case(case: Case) -> Outcome:
    """Run one case in this process with a time limit, and remove the case's directory."""
    signal.alarm(KINDS[case.kind].patience)
    shutil.rmtree(case.directory, ignore_errors=True)
    case.directory.mkdir(parents=True)
    previous, tempfile.tempdir = tempfile.tempdir, str(case.directory)
    try:
        return KINDS[case.kind].run(case)
    except Exception:
        return Outcome(Verdict.OBSCURE, "the campaign itself failed", traceback.format_exc().strip()[-600:])
    finally:
        signal.alarm(0)
        tempfile.tempdir = previous
        shutil.rmtree(case.directory, ignore_errors=True)


def _run_cases(cases: Sequence[Case], num_workers: int) -> Iterator[tuple[Case, Outcome]]:
    """Run cases in worker processes; yield each case with its outcome."""
    own = threading.local()  # each thread has a pool of one process, so that one that dies breaks no other case

    def outcome_of(case: Case) -> Outcome:
        if not hasattr(own, "pool"):
            own.pool = ProcessPoolExecutor(1, context, _prepare, max_tasks_per_child=MOST_CASES)
        try:
            return own.pool.submit(_run_case, case).result()
        except BrokenProcessPool:
            del own.pool
            return Outcome(Verdict.OBSCURE, "?", "its process died, or was ended because it took too long")

    with ThreadPoolExecutor(num_workers) as threads:
        yield from zip(cases, threads.map(outcome_of, cases), strict=True)


def _prepare() -> None:
    """Prepare a worker: its limits, output and audit hook."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(tempfile.gettempdir())
    # Its socket lies in the directory of temporary files, which during a case is one that is removed.
    forkserver.ensure_running()
    capture_output()
    install_audit()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults")
    for kind, (_, count, _) in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, default=count, metavar="N", help=f"cases (default: {count})")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="run one case, and print what was seen")
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()) / "transformer-jax-faults",
                        help="of the runs that are made once")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run cases")
    given = parser.parse_args()
    chosen = [(kind, number) for kind in KINDS for number in range(getattr(given, kind.replace("-", "_")))]
    if given.only is not None:
        kind, _, number = given.only.partition(":")
        if kind not in KINDS or not number.isdecimal():
            parser.error(f"--only is {given.only}; it must be KIND:NUMBER, with a kind of {', '.join(KINDS)}")
        chosen = [(kind, int(number))]
    outcomes = run_campaign(given.seed, chosen, given.work_dir.absolute(), given.workers)
    print(f"\n{table(outcomes)}")
    sys.exit(any(outcome.verdict in FAILURES for outcome in outcomes.values()))
