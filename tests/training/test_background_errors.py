"""Errors of background threads: hidden where the main thread reports one, never lost."""

import logging
import sys
import threading
import traceback

import pytest
from commands import own_handlers

from transformer_jax.errors import InputError
from transformer_jax.training.background_errors import BackgroundErrors, silence_background
from transformer_jax.training.signals import Stopped


def fail_in_a_thread(message: str = "no room") -> None:
    def fail() -> None:
        raise OSError(message)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


def fail_in_a_callback(error: BaseException) -> None:
    class Fails:
        def __del__(self) -> None:
            raise error

    Fails()


def test_the_first_error_of_a_thread_is_raised_if_the_main_thread_has_none(capsys):
    with pytest.raises(OSError, match="no room"), BackgroundErrors():  # noqa: PT012
        fail_in_a_thread()
        fail_in_a_thread("another")
    assert capsys.readouterr().err == ""


def test_it_stands_below_the_traceback_of_another_error_and_not_in_its_one_line(capsys):
    with pytest.raises(InputError) as raised, BackgroundErrors():  # noqa: PT012
        fail_in_a_thread()
        raise InputError("can't be written")
    assert str(raised.value) == "can't be written"
    assert "OSError: no room" in "".join(traceback.format_exception(raised.value))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["absl", "asyncio"])
def test_a_logged_error_is_printed_at_the_end_if_there_is_no_other(name, capsys, caplog):
    with BackgroundErrors():
        logging.getLogger(name).error("it failed")
        logging.getLogger(name).warning("take care")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "it failed\n"
    # Other warnings are shown as ever; Orbax's come in dozens before its error.
    assert caplog.messages == ([] if name == "absl" else ["take care"])


def test_at_the_end_of_a_failed_command_threads_are_silent(capsys):
    with own_handlers():
        silence_background()
        fail_in_a_thread()
        logging.getLogger("absl").error("it failed")
        assert capsys.readouterr().err == ""


def test_an_error_that_python_cannot_raise_is_printed_at_the_end(capsys):
    with BackgroundErrors():
        fail_in_a_callback(ValueError("in a callback"))
        assert capsys.readouterr().err == ""
    assert "ValueError: in a callback" in capsys.readouterr().err


def test_a_signal_that_a_callback_swallowed_is_sent_again(monkeypatch):
    sent = []
    monkeypatch.setattr(Stopped, "send_again", lambda stopped: sent.append(stopped))
    stopped = Stopped(15)
    with BackgroundErrors():
        fail_in_a_callback(stopped)
    assert sent == [stopped]


def test_outside_of_a_command_nothing_is_changed():
    before = threading.excepthook, sys.unraisablehook
    with BackgroundErrors():
        pass
    assert (threading.excepthook, sys.unraisablehook) == before
    assert logging.getLogger("absl").filters == []


def test_a_thread_that_ends_itself_is_no_error(capsys):
    with BackgroundErrors():
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
    assert capsys.readouterr().err == ""
