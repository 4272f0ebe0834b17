"""The verdict on a command or a call that was watched."""

import re

from faults.cases import Outcome, Verdict
from faults.watch import Seen, excess, noise
from transformer_jax.errors import InputError

DIVERGED = 1  # exit status of a training whose numbers are not finite


def failure_of(seen: Seen, fault: str, size: int = 0) -> Outcome | None:
    """The verdict on code that was executed, on files outside, on too much memory; None for none of these.

    Args:
        seen: of the call.
        fault: description.
        size: bytes that it read.
    """
    if seen.violations:
        return Outcome(Verdict.WRONG, fault, "; ".join(seen.violations[:3]))
    if problem := excess(seen, size):
        return Outcome(Verdict.OBSCURE, fault, problem)
    return None


def refusal(seen: Seen, fault: str) -> Outcome | None:
    """The verdict on a command that did not succeed; None for one that did."""
    if problem := noise(seen):
        return Outcome(Verdict.OBSCURE, fault, problem)
    if not seen.status:
        return None
    if seen.status not in (2, DIVERGED):
        return Outcome(Verdict.OBSCURE, fault, f"status {seen.status}: {seen.stderr.strip()[:300]}")
    if not re.search(r"^\S+\.py: error: \S", seen.stderr, re.MULTILINE):
        return Outcome(Verdict.OBSCURE, fault, f"status {seen.status} without an error: {seen.stderr.strip()[:300]}")
    return Outcome(Verdict.CLEAN, fault, seen.stderr.strip()[:300])


def refusal_of_call(seen: Seen, fault: str) -> Outcome | None:
    """The verdict on a call that raised; None for one that returned."""
    if isinstance(seen.error, InputError) and str(seen.error).count("\n") < 3:
        return Outcome(Verdict.CLEAN, fault, str(seen.error)[:300])
    if problem := noise(seen):
        return Outcome(Verdict.OBSCURE, fault, problem)
    return None
