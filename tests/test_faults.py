"""A short fault campaign with fixed seeds, and tests of the campaign's verdicts. `make faults` is the long form."""

import math
import os
from unittest import mock

import pytest
from faults import watch
from faults.campaign import run_campaign
from faults.cases import FAILURES, Verdict, refusal
from faults.watch import GIB, Seen

SHORT = {  # test_resume.py has the signals
    "kills": 1, "corruptions": 5, "pretrained": 13, "command-lines": 7, "names": 1, "encodings": 2, "outputs": 4,
}  # fmt: skip


@pytest.mark.slow
def test_no_fault_of_the_short_campaign_is_obscure_wrong_or_lost(tmp_path):
    chosen = [(kind, number) for kind, count in SHORT.items() for number in range(count)]
    with mock.patch.dict(os.environ):  # the campaign sets variables for its processes
        outcomes = run_campaign(1, chosen, tmp_path)
    assert sorted(outcomes) == sorted(chosen)
    assert [outcome for outcome in outcomes.values() if outcome.verdict in FAILURES] == []


CLEAN = Seen(
    status=2, error=None, value=None, stdout="", stderr="reverse.py: error: lr is 0\n", warned=[], violations=[],
    peak=0,
)  # fmt: skip


def test_one_line_and_status_2_is_a_clean_error_and_nothing_else_is():
    assert refusal(CLEAN, "fault").verdict == Verdict.CLEAN
    assert refusal(CLEAN._replace(status=None, stderr=""), "fault") is None  # it succeeded
    for obscure in (
        CLEAN._replace(status=3),
        CLEAN._replace(stderr=""),
        CLEAN._replace(stderr="reverse.py: error: lr is 0\n" * 5),
        CLEAN._replace(stderr=CLEAN.stderr + "Traceback (most recent call last):\n  File\nKeyError: 3\n"),
        CLEAN._replace(status=None, error=KeyError("lr")),
        CLEAN._replace(peak=math.inf),
    ):
        assert refusal(obscure, "fault").verdict == Verdict.OBSCURE


def test_executed_code_is_wrong_and_memory_is_bounded_by_the_size_of_the_file():
    assert refusal(CLEAN._replace(violations=["executed: os.system"]), "fault").verdict == Verdict.WRONG
    three = CLEAN._replace(peak=3 * GIB)
    assert refusal(three, "fault", size=GIB // 2).verdict == Verdict.OBSCURE
    assert refusal(three, "fault", size=GIB).verdict == Verdict.CLEAN


def test_the_audit_notes_what_is_executed_and_written_outside(tmp_path):
    # The hook is called as Python would, since one that is installed stays for ever.
    own, other = tmp_path / "own", tmp_path / "other"
    with watch.audited(own) as violations:
        watch._hook("open", (str(own / "file"), "w", watch.WRITES))
        watch._hook("open", (str(other), "r", 0))
        assert violations == []
        watch._hook("open", (str(other), "w", watch.WRITES))
        watch._hook("os.rename", (str(own / "a"), str(other), -1, -1))
        watch._hook("os.system", (b"true",))
        watch._hook("pickle.find_class", ("posix", "system"))
    assert [violation.split(":")[0].split(" ")[0] for violation in violations] == [
        "written", "os.rename", "executed", "a",
    ]  # fmt: skip
