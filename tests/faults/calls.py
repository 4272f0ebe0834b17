"""Calls of the public functions and classes with one wrong argument."""

import linecache
import re
import traceback
from pathlib import Path
from typing import Any

import jax

import transformer_jax
from faults.call_table import CALLS, Call
from faults.cases import Case, Outcome, Verdict
from faults.commands_seen import failure_of
from faults.comparing import holds_nan
from faults.watch import Seen, first_line, noise_of, watch

PACKAGE = str(Path(transformer_jax.__file__).parent)


def run(case: Case) -> Outcome:
    """Replace one argument of a good call."""
    rng = case.rng()
    call = CALLS[case.number % len(CALLS)]
    name = rng.choice(sorted(call.wrong))
    wrong = rng.choice(call.wrong[name])
    text = repr(wrong)
    fault = f"{call.name}({name}={text if len(text) < 100 else text[:100] + '…'})".replace("\n", " ")
    seen = watch(lambda: _finished(call, name, wrong), case.directory, case.material / "compiled")
    if outcome := failure_of(seen, fault):
        return outcome
    if seen.error is None:
        return Outcome(Verdict.WRONG, fault, f"accepted{', and the result is NaN' * _is_nan(seen.value)}")
    if problem := noise_of(seen.stderr):
        return Outcome(Verdict.OBSCURE, fault, problem)
    return _judge(seen, call, name, wrong, fault)


def _finished(call: Call, name: str, wrong: Any) -> Any:
    return jax.block_until_ready(call.function(**{**call.good(), name: wrong}))


def _is_nan(value: Any) -> bool:
    try:
        return holds_nan(value)
    except (TypeError, ValueError):  # it is no array
        return False


def _judge(seen: Seen, call: Call, name: str, wrong: Any, fault: str) -> Outcome:
    """Whether the package itself raised, and names the argument."""
    error = seen.error
    assert error is not None
    text = f"{type(error).__name__}: {first_line(error)}"
    if not isinstance(error, ValueError | TypeError) or not _raised_by_the_package(error):
        return Outcome(Verdict.OBSCURE, fault, text)
    names = "|".join((name, *call.also_named.get(name, ())))
    if not re.search(rf"\b({names})\b", str(error)) and not (isinstance(wrong, str) and wrong[:200] in str(error)):
        return Outcome(Verdict.OBSCURE, fault, f"{name} is not named: {text}")
    return Outcome(Verdict.CLEAN, fault, text)


def _raised_by_the_package(error: BaseException) -> bool:
    """Whether the error comes from a `raise` statement of the package, not from an operation that failed."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    statement = linecache.getline(last.filename, last.lineno or 0).strip()
    return last.filename.startswith(PACKAGE) and statement.startswith("raise ")
