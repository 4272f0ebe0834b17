"""A training that is killed, signalled, or runs out of disk space, and that the same command then completes."""

import random
import re
import signal
import time
from pathlib import Path

from faults.cases import Case, Outcome, Verdict, noise
from faults.comparing import differences
from faults.material import STEPS, TASK, TRAININGS, arguments, undisturbed
from faults.processes import Ended, Running, Start

NO_CODE_YET = 0.15  # seconds in which Python starts, and Ctrl-C shows its own traceback
WAYS = ("once", "twice", "to all with workers", "while saving", "at the end", "at start")


def kill(case: Case) -> Outcome:
    """Kill a training with SIGKILL at one to three random moments, then let it finish."""
    rng = case.rng()
    name, training = list(TRAININGS.items())[case.number % len(TRAININGS)]
    evaluated, moments = [0], []
    for _ in range(rng.choice((1, 1, 2, 3))):
        together = training.begin(arguments(case.directory, training))
        moments.append(_wait_for_moment(together[0], case.directory / rng.choice(training.runs), rng))
        for running in together:
            running.send(signal.SIGKILL, to_group=True)
        ended, *_ = [running.wait() for running in together]
        evaluated += _evaluated_steps(ended.stdout)
    return _judge_resumed(case, f"{name}: SIGKILL {', '.join(moments)}", evaluated, name)


def send_signal(case: Case) -> Outcome:
    """Send SIGTERM or SIGINT to a training, then let it finish."""
    rng = case.rng()
    way = WAYS[case.number % len(WAYS)]
    number = rng.choice((signal.SIGTERM, signal.SIGINT))
    workers = ["--num-workers=1"] if way == "to all with workers" else []
    start = Start(anew=way in ("at start", "to all with workers") or (way == "at the end" and rng.random() < 0.5))
    running = Running("reverse.py", *arguments(case.directory), *workers, start=start)
    moment = _wait(running, way, case.directory / TASK, rng)
    running.send(number, to_group=way == "to all with workers")
    if way == "twice":
        time.sleep(rng.choice((0.0, 0.001, 0.01, 0.1)) * rng.random())
        running.send(rng.choice((number, signal.SIGTERM)))
    ended = running.wait()
    fault = f"{number.name} {way}, {moment}"
    if problem := noise(ended.stderr) or _wrong_status(ended, way, number):
        return Outcome(Verdict.OBSCURE, fault, problem)
    saved = [int(step) for step in re.findall(r"stopped and saved after step (\d+)", ended.stderr)]
    return _judge_resumed(case, fault, [0, *_evaluated_steps(ended.stdout), *saved])


def fill_disk(case: Case) -> Outcome:
    """Train with a limit on the size of files, then continue without the limit."""
    size = int(2 ** case.rng().uniform(15, 18))
    line = arguments(case.directory)
    ended = Running("reverse.py", *line, start=Start(max_file_size=size)).wait()
    fault = f"files of at most {size} bytes"
    # Threads of other libraries may print their own tracebacks before our line.
    is_named = ended.status == 2 and "reverse.py: error: " in ended.stderr
    if not is_named and (problem := _failure(ended)):
        return Outcome(Verdict.OBSCURE, fault, problem)
    resumed = _judge_resumed(case, fault, [0, *_evaluated_steps(ended.stdout)])
    if is_named and resumed.verdict == Verdict.RIGHT:
        return Outcome(Verdict.CLEAN, fault, ended.stderr.strip()[:200])
    return resumed


def _failure(ended: Ended) -> str | None:
    """Return why a command failed; None if it succeeded."""
    problem = noise(ended.stderr)
    return problem or (None if ended.status == 0 else f"status {ended.status}: {ended.stderr.strip()[-300:]}")


def _wait_for_moment(running: Running, run: Path, rng: random.Random) -> str:
    """Wait for a random time, or for a random change of the run's directory; returns which."""
    if rng.random() < 0.5:
        seconds = rng.random() * 3
        deadline = time.monotonic() + seconds
        while not running.has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        return f"after {seconds:.2f} s"
    changes = rng.randrange(1, 60)
    listings: set[frozenset[Path]] = set()
    while not running.has_ended() and len(listings) <= changes:
        listings.add(frozenset((*run.glob("*"), *run.glob("checkpoints/*"))))
        time.sleep(0.0005)
    time.sleep(rng.choice((0.0, 0.002, 0.02)) * rng.random())
    return f"at change {changes} of the directory"


def _wait(running: Running, way: str, run: Path, rng: random.Random) -> str:
    """Wait for the moment at which the signal is to be sent; return the moment."""
    if way == "at start":
        seconds = NO_CODE_YET + rng.random() * 6
        time.sleep(seconds)
        return f"after {seconds:.2f} s"
    if way == "at the end":
        running.wait_for(f"step {STEPS}: validation")
        time.sleep(rng.random() * 1.5)
        return "after the last step"
    if way in ("once", "twice"):
        time.sleep(NO_CODE_YET)
        return _wait_for_moment(running, run, rng)
    count = rng.randrange(1, 6)
    running.wait_for("validation", count)
    time.sleep(rng.random() * 0.05)
    return f"after evaluation {count}"


def _wrong_status(ended: Ended, way: str, number: int) -> str | None:
    """Return why the signal may not cause this status; None if it may."""
    has_trained = "validation" in ended.stdout
    right = {0, 128 + number}  # 0: it came too late
    if way == "twice":
        right |= {-number, -signal.SIGTERM, 128 + signal.SIGTERM}
    if not has_trained:
        right.add(-number)  # nothing was there to save
    if ended.status not in right:
        return f"status {ended.status}, not one of {right}: {ended.stderr.strip()[:200]}"
    if ended.status == 128 + number and has_trained and way != "twice" and ": stopped" not in ended.stderr:
        return f"it does not say that it stopped: {ended.stderr.strip()[:200]}"
    return None


def _evaluated_steps(stdout: str) -> list[int]:
    """Return the steps at which a run was evaluated, except the last, whose checkpoint may be incomplete."""
    return [int(step) for step in re.findall(r"step (\d+): validation", stdout)][:-1]


def _judge_resumed(case: Case, fault: str, evaluated: list[int], name: str = "reverse") -> Outcome:
    """Return the verdict on an interrupted training of `TRAININGS` after it has been restarted."""
    training, expected = TRAININGS[name], undisturbed(name, case.material)
    line = [*arguments(case.directory, training), "--steps-per-call=5"]  # as other calls change nothing
    all_ended = [running.wait() for running in training.begin(line)]
    if problems := [*filter(None, map(_failure, all_ended))]:
        return Outcome(Verdict.OBSCURE, fault, f"resumed: {problems[0]}")
    ended = all_ended[0]
    begun_at = max(map(int, re.findall(r"Going on after step (\d+)", ended.stdout)), default=0)
    if len(training.runs) == 1 and begun_at < max(evaluated):
        return Outcome(Verdict.LOST, fault, f"went on after step {begun_at}, but {max(evaluated)} was saved")
    for run in training.runs:
        if differing := differences(case.directory / run, expected / run):
            verdict = Verdict.LOST if set(differing) == {"curves"} and " of " in differing["curves"] else Verdict.WRONG
            return Outcome(verdict, fault, "; ".join(differing.values()))
        if left := [path.name for path in (case.directory / run).rglob("*tmp*")]:
            return Outcome(Verdict.OBSCURE, fault, f"left behind: {', '.join(left[:3])}")
    warned = ended.stderr.strip()[:200]
    return Outcome(Verdict.RECOVERED if warned else Verdict.RIGHT, fault, warned)
