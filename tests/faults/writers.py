"""Two commands that want to write one run's directory."""

import time

from faults import processes
from faults.cases import Case, Outcome, Verdict
from faults.comparing import differences
from faults.kills import failure
from faults.material import TASK, arguments


def run(case: Case) -> Outcome:
    """Start two: one trains to the right end, the other one ends with one line."""
    rng = case.rng()
    gap = rng.choice((0.0, rng.random() * 0.05, rng.random() * 3))
    fault = f"a second writer after {gap:.2f} s"
    line = arguments(case.material, case.directory)
    first = processes.begin(case.directory / "first", "reverse.py", *line)
    time.sleep(gap)
    second = processes.begin(case.directory / "second", "reverse.py", *line)
    ends = [first.wait(), second.wait()]
    refused = [end for end in ends if end.status == 2]
    if problems := [failure(end, end.status or 0) for end in ends if failure(end, 2) and failure(end)]:
        return Outcome(Verdict.OBSCURE, fault, str(problems[0]))
    if len(refused) == 2:
        return Outcome(Verdict.LOST, fault, "neither of the two trained")
    differing = differences(case.directory / TASK, case.material / "undisturbed" / TASK)
    if differing:
        return Outcome(Verdict.WRONG, fault, "; ".join(differing.values()))
    return Outcome(Verdict.CLEAN if refused else Verdict.RIGHT, fault, refused[0].stderr[:200] if refused else "")
