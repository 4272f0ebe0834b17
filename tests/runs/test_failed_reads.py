"""A failed read ends with its own error alone, after the tasks that it left behind."""

import logging
import sys
import threading
import types

import pytest

from transformer_jax.runs.failed_reads import ReadError, read_quietly

# A task as Orbax leaves one behind: it is collected while it waits, and answers the end with an error of its own.
TASK = """
@types.coroutine
def pause():
    yield

async def read():
    try:
        await pause()
    except GeneratorExit as end:
        raise Exception("while reading an array") from end
"""


def task_of(package: str) -> types.CoroutineType:
    names = {"types": types}
    exec(compile(TASK, f"/lib/{package}/reading.py", "exec"), names)
    task = names["read"]()
    task.send(None)
    return task


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """What Python prints of errors that it can't raise."""
    errors: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failed: errors.append(str(failed.exc_value)))
    return errors


def test_a_read_changes_nothing_whether_it_succeeds_or_fails(shown):
    def fail():
        raise ValueError("damaged\nbytes")

    logger = logging.getLogger("asyncio")
    before = sys.unraisablehook, list(logger.filters)
    assert read_quietly(lambda: 3) == 3
    with pytest.raises(ReadError, match="^damaged$"):
        read_quietly(fail)
    assert (sys.unraisablehook, logger.filters) == before


def test_a_failed_read_waits_silently_for_the_tasks_that_it_left_behind(shown):
    collected = []

    def fail():
        tasks = [task_of("orbax")]

        def let_go():
            tasks.clear()
            collected.append(True)

        threading.Timer(0.2, let_go).start()  # as TensorStore does, when it has read
        raise ValueError("damaged")

    with pytest.raises(ReadError):
        read_quietly(fail)
    assert collected == [True]
    assert shown == []


def test_errors_of_other_tasks_are_shown(shown):
    def fail():
        task_of("another")
        raise ValueError("damaged")

    with pytest.raises(ReadError):
        read_quietly(fail)
    assert shown == ["while reading an array"]


def test_callbacks_to_a_closed_loop_are_silent_and_other_errors_are_not(shown):
    class Failing:
        def __init__(self, error):
            self.error = error

        def __del__(self):
            raise self.error

    def fail():
        for error in (
            RuntimeError("Event loop is closed"),
            RuntimeError("another"),
            ValueError("Event loop is closed"),
        ):
            Failing(error)
        raise ValueError("damaged")

    with pytest.raises(ReadError):
        read_quietly(fail)
    assert shown == ["another", "Event loop is closed"]


def test_records_of_its_tasks_are_silent_also_for_earlier_filters_and_others_are_not(caplog, monkeypatch):
    logger = logging.getLogger("asyncio")
    kept = []
    monkeypatch.setattr(logger, "filters", [lambda record: kept.append(record.getMessage()) or True])

    def fail():
        logger.error("Task exception was never retrieved: orbax/checkpoint/handler.py")
        try:
            raise ValueError('Error reading "a/.zarray" in OCDBT database')
        except ValueError as error:
            logger.error("Task exception was never retrieved", exc_info=error)
        logger.error("Task exception was never retrieved: the user's own")
        raise ValueError("damaged")

    with pytest.raises(ReadError):
        read_quietly(fail)
    assert caplog.messages == kept == ["Task exception was never retrieved: the user's own"]
