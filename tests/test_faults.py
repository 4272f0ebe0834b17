"""A short fault campaign with a fixed seed, and its verdicts on faults of this file. `make faults` is the long form."""

import pytest
from faults.__main__ import run_case
from faults.outcomes import Verdict
from memory import free_programs_if_full

GOOD = Verdict.RIGHT, Verdict.RECOVERED, Verdict.CLEAN


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("kills", 1), ("files", 12)])  # test_resume.py has the signals
def test_no_fault_of_the_short_campaign_is_obscure_wrong_or_lost(kind, count, tmp_path):
    outcomes = []
    for number in range(count):
        outcomes.append(run_case(kind, number, 1, tmp_path))
        free_programs_if_full()
    assert [outcome for outcome in outcomes if outcome.verdict not in GOOD] == []
