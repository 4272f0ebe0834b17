"""A disk that fills up while a run is written: the system takes no more in one file."""

from faults import processes
from faults.cases import Case, Outcome, Verdict
from faults.kills import evaluated_steps, failure, judge_resumed
from faults.material import arguments

KIB = 1024


def run(case: Case) -> Outcome:
    """Train where there is too little room, and train on where there is enough."""
    size = int(2 ** case.rng().uniform(5, 8)) * KIB  # what the command prints goes to a file too, and must fit
    line = arguments(case.material, case.directory)
    limits = processes.Limits(max_file_size=size)
    ended = processes.begin(case.directory / "output", "reverse.py", *line, limits=limits).wait()
    fault = f"files of at most {size // KIB} KiB"
    # The room may have been enough; else a line that says so, status 2, and nothing lost.
    succeeded = ended.status == 0 and failure(ended) is None
    # Threads of other libraries may print their own tracebacks before our line.
    if not succeeded and (ended.status != 2 or "reverse.py: error: " not in ended.stderr):
        return Outcome(Verdict.OBSCURE, fault, failure(ended, status=2) or ended.stderr.strip()[-300:])
    resumed = judge_resumed(case, fault, [0, *evaluated_steps(ended.stdout)])
    if resumed.verdict == Verdict.RIGHT and not succeeded:
        return Outcome(Verdict.CLEAN, fault, ended.stderr.strip()[:200])
    return resumed
