"""Signals: recorded while a training loop can grant them, raised elsewhere in a command, and never lost."""

import os
import signal
import subprocess
import sys

import pytest

from transformer_jax.training.signals import CommandSignals, Interrupted, Stopped, StopRequest


@pytest.fixture(autouse=True)
def own_handlers():
    """This process's handlers come back after a test."""
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in previous.items():
        signal.signal(number, handler)


def send(signal_number: int) -> None:
    os.kill(os.getpid(), signal_number)


def test_a_signal_that_nobody_raised_reaches_the_handler_from_before():
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
    CommandSignals()
    with StopRequest() as request:
        send(signal.SIGINT)
        request.synchronize()
        assert request.signal_number is None
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_in_a_command_a_signal_is_an_error_where_the_main_thread_is():
    signals = CommandSignals()
    signals.raise_if_signalled()
    with pytest.raises(Stopped, match="SIGTERM: stopped; the same command goes on") as stopped:
        send(signal.SIGTERM)
    assert stopped.value.exit_status == 143
    with pytest.raises(Stopped):  # also if a callback swallowed the error
        signals.raise_if_signalled()


@pytest.mark.parametrize("handle", ["CommandSignals()", "end_at_signals()"])
def test_a_second_signal_ends_a_command_at_once(handle):
    code = (
        "import os, signal\n"
        "from transformer_jax.training.signals import CommandSignals, end_at_signals\n"
        f"{handle}\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except KeyboardInterrupt:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "print('still here')\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.returncode == (-signal.SIGTERM if handle == "CommandSignals()" else 143)
    assert (process.stdout, process.stderr) == ("", "")
