"""The campaign: all cases of all kinds, the table of their verdicts for docs/reliability.md, and what to repeat."""

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from repository import REPOSITORY

from faults import report
from faults.cases import FAILURES, Case, Outcome
from faults.material import make_material
from faults.worker import run_cases

DEFAULTS = {
    "kills": 30, "signals": 30, "full-disk": 10, "permissions": 14,
    "corruptions": 200, "untrusted": 300, "pretrained": 200, "command-lines": 600, "foreign": 30,
}  # fmt: skip
# Compiled quickly: programs of the campaign run for seconds.
ENVIRONMENT = {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "4",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "MPLBACKEND": "agg",
}


def run_campaign(
    seed: int, counts: Mapping[str, int], work_dir: Path, num_workers: int = 2
) -> dict[tuple[str, int], Outcome]:
    """Run so many cases of each kind, and give their outcomes by kind and number."""
    material = _prepare(work_dir)
    cases = [
        Case(kind, number, seed, material, work_dir / "cases" / f"{kind}-{number}")
        for kind, count in counts.items()
        for number in range(count)
    ]
    outcomes: dict[tuple[str, int], Outcome] = {}
    for case, outcome in run_cases(cases, num_workers):
        outcomes[case.kind, case.number] = outcome
        if outcome.verdict in FAILURES:
            print(f"\r{describe(case.kind, case.number, seed, outcome)}", flush=True)
        elif sys.stdout.isatty():
            print(f"\r{len(outcomes)} of {len(cases)}, {case.kind}   ", end="", flush=True)
    return {(case.kind, case.number): outcomes[case.kind, case.number] for case in cases}


def _prepare(work_dir: Path) -> Path:
    """Set the environment of all processes, and make the runs that the cases need."""
    os.environ.update(ENVIRONMENT | {"MPLCONFIGDIR": str(work_dir / "matplotlib")})
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY / "tests"), os.environ.get("PYTHONPATH"))))
    material = make_material(work_dir)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(material / "compiled")
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
    return material


def describe(kind: str, number: int, seed: int, outcome: Outcome) -> str:
    """A failure in two lines: what happened, and the command that repeats it."""
    command = f'make faults ARGS="--only {kind}:{number} --seed {seed}"'
    return f"{outcome.verdict}: {outcome.fault}: {outcome.seen}\n    {command}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults")
    for kind, count in DEFAULTS.items():
        parser.add_argument(f"--{kind}", type=int, default=count, metavar="N", help=f"cases (default: {count})")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="run one case, and print what was seen")
    parser.add_argument("--work-dir", type=Path, default=Path(tempfile.gettempdir()) / "transformer-jax-faults",
                        help="of the runs that are made once")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes that run cases")
    given = parser.parse_args()
    if given.only is not None:
        sys.exit(_run_only(given))
    counts = {kind: getattr(given, kind.replace("-", "_")) for kind in DEFAULTS}
    try:
        outcomes = run_campaign(given.seed, counts, given.work_dir.absolute(), given.workers)
    except KeyboardInterrupt:
        sys.exit("stopped")
    print(f"\n{report.table(outcomes)}")
    failures = Counter(outcome.verdict for outcome in outcomes.values() if outcome.verdict in FAILURES)
    sys.exit(1 if failures else 0)


def _run_only(given: argparse.Namespace) -> int:
    kind, _, number = given.only.partition(":")
    work_dir = given.work_dir.absolute()
    material = _prepare(work_dir)
    case = Case(kind, int(number), given.seed, material, work_dir / "cases" / f"only-{kind}-{number}")
    for _, outcome in run_cases([case], 1):
        print(f"{outcome.verdict}: {outcome.fault}\n{outcome.seen}")
        return int(outcome.verdict in FAILURES)
    return 1
