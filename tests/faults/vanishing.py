"""The directory of a run that is removed, or renamed, while it is written."""

import shutil
import time

from faults import processes
from faults.cases import Case, Outcome, Verdict
from faults.kills import evaluated_steps, failure, judge_resumed, wait_for_moment
from faults.material import TASK, arguments


def run(case: Case) -> Outcome:
    """Take the directory away: one line, status 2; where it was renamed, it can be continued."""
    rng = case.rng()
    renamed = case.number % 2 == 0
    parent = case.directory / "parent"
    running = processes.begin(case.directory / "output", "reverse.py", *arguments(case.material, parent))
    while not (parent / TASK / "config.json").exists() and running.poll() is None:
        time.sleep(0.002)
    moment = wait_for_moment(running, parent / TASK, rng)
    fault = f"the directory is {'renamed' if renamed else 'removed'} {moment}"
    had_ended = running.poll() is not None
    (parent / TASK).rename(case.directory / TASK)
    if not renamed:  # in one go, since the process goes on writing while files are removed one by one
        shutil.rmtree(case.directory / TASK, ignore_errors=True)
    ended = running.wait()
    if not (had_ended or ended.status == 0) and (problem := failure(ended, status=2)):
        return Outcome(Verdict.OBSCURE, fault, problem)
    if ended.status == 0 and not had_ended and (problem := failure(ended)):
        return Outcome(Verdict.OBSCURE, fault, problem)
    if renamed:
        resumed = judge_resumed(case, fault, [0, *evaluated_steps(ended.stdout)[:-1]])
        if resumed.verdict != Verdict.RIGHT:
            return resumed
    return Outcome(Verdict.RIGHT if ended.status == 0 else Verdict.CLEAN, fault, ended.stderr.strip()[:200])
