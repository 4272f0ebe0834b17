"""`python -m faults` runs all cases and prints the table of their verdicts for docs/reliability.md; see `--help`."""

import argparse
import random
import tempfile
from collections import Counter
from pathlib import Path

from tqdm import tqdm

from faults.hostile import open_hostile
from faults.kills import kill
from faults.outcomes import FAILURES, Outcome, Verdict

KINDS = {"kills": kill, "files": open_hostile}


def run_case(kind: str, number: int, seed: int, work_dir: Path) -> Outcome:
    """Run a case, whose fault depends on its kind, its number and the seed alone."""
    with tempfile.TemporaryDirectory(dir=work_dir) as directory:
        return KINDS[kind](number, random.Random(f"{seed}:{kind}:{number}"), work_dir, Path(directory))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="chooses the faults")
    parser.add_argument("--kills", type=int, default=30, metavar="N", help="trainings that are killed")
    parser.add_argument("--files", type=int, default=300, metavar="N", help="files that are damaged")
    parser.add_argument("--only", metavar="KIND:NUMBER", help="run one case, and print what was seen")
    given = parser.parse_args()
    chosen = [f"{kind}:{number}" for kind in KINDS for number in range(vars(given)[kind])]
    verdicts = Counter[tuple[str, Verdict]]()
    with tempfile.TemporaryDirectory() as work_dir:
        for case in tqdm([given.only] if given.only else chosen, disable=None):
            kind, _, number = case.partition(":")
            outcome = run_case(kind, int(number), given.seed, Path(work_dir))
            verdicts[kind, outcome.verdict] += 1
            if outcome.verdict in FAILURES or given.only:
                tqdm.write(f"{case}: {outcome.verdict}: {outcome.fault}: {outcome.seen}")
    print(f"\n| kind | {' | '.join(Verdict)} |\n| --- |{' ---: |' * len(Verdict)}")
    for kind in KINDS:
        print(f"| {kind} | {' | '.join(str(verdicts[kind, verdict]) for verdict in Verdict)} |")
    raise SystemExit(any(verdict in FAILURES for _, verdict in verdicts))


if __name__ == "__main__":
    main()
