"""SIGTERM and SIGINT: once, twice, to all processes of a run, while it saves, at its end, at its start."""

import random
import re
import signal
import time
from pathlib import Path

from faults import processes
from faults.cases import Case, Outcome, Verdict
from faults.kills import evaluated_steps, judge_resumed, wait_for_moment
from faults.material import STEPS, TASK, arguments
from faults.processes import Running
from faults.watch import noise_of

NO_CODE_YET = 0.1  # seconds in which Python starts, and Ctrl-C shows its own traceback
WAYS = ("once", "twice", "to all with workers", "while saving", "at the end", "ignored", "at start")


def run(case: Case) -> Outcome:
    """Send a signal to a run, and let it end."""
    rng = case.rng()
    way = WAYS[case.number % len(WAYS)]
    number = rng.choice((signal.SIGTERM, signal.SIGINT))
    workers = ["--num-workers=1"] if way == "to all with workers" else []
    running = processes.begin(
        case.directory / "signalled", "reverse.py", *arguments(case.material, case.directory), *workers,
        anew=way in ("at start", "to all with workers") or (way == "at the end" and rng.random() < 0.5),
        limits=processes.Limits(ignored=number if way == "ignored" else None),
    )  # fmt: skip
    moment = _send(running, way, number, case.directory / TASK, rng)
    ended = running.wait()
    fault = f"{number.name} {way}, {moment}"
    if ended.status is None:
        return Outcome(Verdict.OBSCURE, fault, "it did not end")
    if problem := noise_of(ended.stderr):
        return Outcome(Verdict.OBSCURE, fault, problem)
    if problem := _wrong_status(ended.status, way, number, ended.stdout, ended.stderr):
        return Outcome(Verdict.OBSCURE, fault, problem)
    saved = [int(step) for step in re.findall(r"stopped and saved after step (\d+)", ended.stderr)]
    return judge_resumed(case, fault, [0, *evaluated_steps(ended.stdout), *saved])


def _send(running: Running, way: str, number: signal.Signals, run: Path, rng: random.Random) -> str:
    """Send it at a moment that the way asks for; returns the moment."""
    match way:
        case "at start":
            moment = f"{NO_CODE_YET + rng.random() * 6:.2f}"
            time.sleep(float(moment))
            running.send(number, to_group=rng.random() < 0.5)
            return f"after {moment} s"
        case "at the end":
            _wait_for(running, f"step {STEPS}: validation")
            time.sleep(rng.random() * 1.5)
            running.send(number)
            return "after the last step"
        case "while saving" | "ignored" | "to all with workers":
            count = rng.randrange(1, 6)
            _wait_for(running, "validation", count)
            time.sleep(rng.random() * 0.05)
            running.send(number, to_group=way == "to all with workers")
            return f"after evaluation {count}"
    time.sleep(NO_CODE_YET)
    moment = wait_for_moment(running, run, rng)
    running.send(number)
    if way == "twice":
        time.sleep(rng.choice((0.0, 0.001, 0.01, 0.1)) * rng.random())
        running.send(rng.choice((number, signal.SIGTERM)))
    return moment


def _wait_for(running: Running, text: str, count: int = 1) -> None:
    while running.stdout().count(text) < count and running.poll() is None:
        time.sleep(0.002)


def _wrong_status(status: int, way: str, number: int, stdout: str, stderr: str) -> str | None:
    """Why a status is not the one that the signal should give; None if it is."""
    has_trained = "validation" in stdout
    if status == 0:
        return None  # it came too late
    if way == "ignored":
        return f"status {status}, though the signal was ignored when the run was started"
    if status == 128 + number and has_trained and way != "twice" and ": stopped" not in stderr:
        return f"it does not say that it stopped: {stderr.strip()[:200]}"
    if status == 128 + number or (way == "twice" and status in (-number, -signal.SIGTERM, 128 + signal.SIGTERM)):
        return None
    if status == -number and not has_trained:
        return None  # nothing was there to save
    return f"status {status}, and not {128 + number}: {stderr.strip()[:200]}"
