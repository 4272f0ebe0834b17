"""After a failed read the tasks that it left behind are silent; everything else is shown as ever."""

import logging
import sys

import pytest

from transformer_jax.runs.failed_reads import ReadError, read_quietly


def fail() -> None:
    raise ValueError("damaged\nbytes")


@pytest.fixture
def asyncio_logger(monkeypatch) -> logging.Logger:
    logger = logging.getLogger("asyncio")
    monkeypatch.setattr(logger, "filters", [])
    monkeypatch.setattr(sys, "unraisablehook", lambda failed: None)
    return logger


def test_a_read_that_succeeds_changes_nothing(asyncio_logger):
    hook = sys.unraisablehook
    assert read_quietly(lambda: 3) == 3
    assert (asyncio_logger.filters, sys.unraisablehook) == ([], hook)


def test_after_a_failure_tasks_of_orbax_stay_silent_also_after_reads_that_succeed(asyncio_logger, caplog):
    with pytest.raises(ReadError, match="^damaged$"):
        read_quietly(fail)
    read_quietly(lambda: 3)
    asyncio_logger.error("Task exception was never retrieved: orbax/checkpoint/handler.py")
    try:
        raise ValueError('Error reading "a/.zarray" in OCDBT database')
    except ValueError as error:
        asyncio_logger.error("Task exception was never retrieved", exc_info=error)
    asyncio_logger.error("Task exception was never retrieved: the user's own")
    assert caplog.messages == ["Task exception was never retrieved: the user's own"]


def test_after_a_failure_closed_loops_are_silent_and_other_errors_are_not(asyncio_logger, monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failed: shown.append(str(failed.exc_value)))
    with pytest.raises(ReadError):
        read_quietly(fail)
    for error in (RuntimeError("Event loop is closed"), RuntimeError("another"), ValueError("Event loop is closed")):
        arguments = type("Arguments", (), {"exc_value": error})
        sys.unraisablehook(arguments)
    assert shown == ["another", "Event loop is closed"]
