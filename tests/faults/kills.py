"""SIGKILL at a random moment of a training, then the same command again."""

import random
import re
import signal
import time
from pathlib import Path

from faults.cases import Case, Outcome, Verdict
from faults.comparing import differences
from faults.material import TRAININGS, arguments, undisturbed
from faults.processes import Ended, Running
from faults.watch import noise_of


def run(case: Case) -> Outcome:
    """Kill a training one to three times, and let it end."""
    rng = case.rng()
    name = list(TRAININGS)[case.number % len(TRAININGS)]
    training = TRAININGS[name]
    evaluated, moments = [0], []
    for number in range(rng.choice((1, 1, 2, 3))):
        line = arguments(case.material, case.directory, training)
        together = training.begin(case.directory / f"output{number}", line)
        moments.append(wait_for_moment(together[0], case.directory / rng.choice(training.runs), rng))
        for running in together:
            running.send(signal.SIGKILL, to_group=True)
        ended, *_ = [running.wait() for running in together]
        evaluated += evaluated_steps(ended.stdout)
    return judge_resumed(case, f"{name}: SIGKILL {', '.join(moments)}", evaluated, name)


def wait_for_moment(running: Running, run: Path, rng: random.Random) -> str:
    """Wait for a random time, or for a random change of the run's directory; returns which."""
    if rng.random() < 0.5:
        seconds = rng.random() * 3
        deadline = time.monotonic() + seconds
        while running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        return f"after {seconds:.2f} s"
    changes = rng.randrange(1, 60)
    before, count = _listing(run), 0
    while running.poll() is None and count < changes:
        time.sleep(0.0005)
        if (now := _listing(run)) != before:
            before, count = now, count + 1
    time.sleep(rng.choice((0.0, 0.002, 0.02)) * rng.random())
    return f"at change {changes} of the directory"


def _listing(run: Path) -> list[str]:
    try:
        names = [path.name for path in run.iterdir()]
        return sorted(names) + sorted(path.name for path in (run / "checkpoints").glob("*"))
    except OSError:
        return []


def evaluated_steps(stdout: str) -> list[int]:
    """The steps at which a run was evaluated. The checkpoint of each was complete when the next one was begun."""
    return [int(step) for step in re.findall(r"step (\d+): validation", stdout)][:-1]


def judge_resumed(case: Case, fault: str, evaluated: list[int], name: str = "reverse") -> Outcome:
    """The verdict on a training of `TRAININGS` that was interrupted, after it has been started once more."""
    training, expected = TRAININGS[name], undisturbed(name, case.material)
    line = arguments(case.material, case.directory, training)
    all_ended = [running.wait() for running in training.begin(case.directory / "resumed", line)]
    if problems := [*filter(None, map(failure, all_ended))]:
        return Outcome(Verdict.OBSCURE, fault, f"resumed: {problems[0]}")
    ended = all_ended[0]
    found = re.search(r"Going on after step (\d+)", ended.stdout)
    begun_at = int(found[1]) if found else 0
    if len(training.runs) == 1 and begun_at < max(evaluated):
        return Outcome(Verdict.LOST, fault, f"went on after step {begun_at}, but {max(evaluated)} was saved")
    for run in training.runs:
        differing = differences(case.directory / run, expected / run)
        if differing:
            verdict = Verdict.LOST if set(differing) == {"curves"} and " of " in differing["curves"] else Verdict.WRONG
            return Outcome(verdict, fault, "; ".join(differing.values()))
        if left := [path.name for path in (case.directory / run).rglob("*tmp*")]:
            return Outcome(Verdict.OBSCURE, fault, f"left behind: {', '.join(left[:3])}")
    if ended.stderr.strip():
        return Outcome(Verdict.RECOVERED, fault, ended.stderr.strip()[:200])
    return Outcome(Verdict.RIGHT, fault)


def failure(ended: Ended, status: int = 0) -> str | None:
    """Why a command did not end as it should; None if it did."""
    if ended.status is None:
        return "it did not end"
    if problem := noise_of(ended.stderr):
        return problem
    return None if ended.status == status else f"status {ended.status}: {ended.stderr.strip()[-300:]}"
