"""The stopwatch: seconds of each activity, of which only the innermost runs."""

import contextlib
from types import SimpleNamespace

import pytest

from transformer_jax.devices import stopwatch as stopwatch_module
from transformer_jax.devices.stopwatch import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """A clock that shows what the test sets."""
    clock = SimpleNamespace(now=100.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(stopwatch_module, "time", clock)
    return clock


def test_an_activity_inside_another_pauses_it(clock):
    watch = Stopwatch("train", "compile")
    with watch.during("train"):
        clock.now += 2
        with watch.during("compile"):
            clock.now += 30
        clock.now += 5
        assert watch.seconds == {"train": 7, "compile": 30}  # while it runs, too
    clock.now += 1000
    assert watch.seconds == {"train": 7, "compile": 30}


def test_an_activity_that_ends_in_an_error_stops(clock):
    watch = Stopwatch("train", "compile")
    with contextlib.suppress(KeyboardInterrupt), watch.during("train"):
        clock.now += 3
        raise KeyboardInterrupt
    clock.now += 1000
    assert watch.seconds == {"train": 3, "compile": 0}


def test_a_resumed_run_adds_to_what_was_measured_before(clock):
    watch = Stopwatch("train", "compile")
    with watch.during("train"):
        clock.now += 3
    watch.restore({"train": 50.0, "compile": 1.0})
    assert watch.seconds == {"train": 53, "compile": 1}
