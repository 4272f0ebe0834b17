"""Signals: recorded while a training loop can handle them, raised elsewhere in a command, and never lost."""

import os
import signal
import subprocess
import sys

import commands
import pytest

from transformer_jax.fit.signals import Interrupted, StopRequest, raise_at_signals


@pytest.fixture(autouse=True)
def own_handlers():
    """Restore this process's handlers after a test."""
    with commands.own_handlers():
        yield


def send(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)


def test_a_signal_that_was_not_raised_reaches_the_previous_handler():
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    with StopRequest() as request:
        request.raise_if_signalled(7)
        send(signal.SIGTERM)  # after the last look at the request
    assert received == [signal.SIGTERM]


def test_a_signal_that_was_raised_is_not_sent_on():
    received = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    with pytest.raises(Interrupted, match="SIGTERM.* saved after step 7;"), StopRequest() as request:  # noqa: PT012
        send(signal.SIGTERM)
        request.synchronize()
        request.raise_if_signalled(7)
    assert received == []


def test_a_signal_that_the_process_was_told_to_ignore_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_at_signals()
    with StopRequest() as request:
        send(signal.SIGINT)
        request.synchronize()
        assert request.signal_number is None
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_in_a_command_a_signal_is_an_error_where_the_main_thread_is():
    signalled = raise_at_signals()
    assert signalled == []
    with pytest.raises(Interrupted, match="SIGTERM: stopped; the same command resumes a training") as interrupted:
        send(signal.SIGTERM)
    assert interrupted.value.exit_status == 143
    assert signalled == [interrupted.value]  # also if a callback swallowed the error


@pytest.mark.parametrize("handle", ["raise_at_signals()", "StopRequest().__enter__()", "end_at_signals()"])
def test_a_second_signal_ends_a_command_at_once(handle):
    code = (
        "import signal\n"
        "from transformer_jax.fit.signals import StopRequest, end_at_signals, raise_at_signals\n"
        f"{handle}\n"
        "both = {signal.SIGTERM, signal.SIGINT}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, both)\n"
        "for number in both:\n"
        "    signal.raise_signal(number)\n"
        "try:\n"
        "    signal.pthread_sigmask(signal.SIG_UNBLOCK, both)\n"  # both at once
        "except KeyboardInterrupt:\n"
        "    pass\n"
        "print('still here')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert (process.stdout, process.stderr) == ("", "")
