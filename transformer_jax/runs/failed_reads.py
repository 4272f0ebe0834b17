"""Reading with Orbax, which leaves tasks of a closed event loop behind where an array can't be read or written."""

import contextlib
import errno
import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CoroutineType
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.runs.format import FormatError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

Result = TypeVar("Result")

# Errors that may be gone the next time; a checkpoint that is taken for damaged is deleted in the end.
NO_DAMAGE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
MAX_WAIT = 5.0  # seconds for the other reads of a failed one to end


class ReadError(Exception):
    """A checkpoint can't be read, for the reason that is the message."""


def read_quietly(read: Callable[[], Result]) -> Result:
    """Call a function that reads with Orbax, whose error is the only one that is shown if it fails.

    Orbax closes its event loop at the first array that can't be read. TensorStore, which still reads the others, can't
    call back then, and Python and asyncio would print an error for each task when it is collected. Hence a failed read
    waits, silently, until all of its tasks are gone.

    Raises:
        FormatError, MemoryError, OSError: as `read` does; of the operating system's errors those of `NO_DAMAGE`.
        ReadError: in the place of any other error.
    """
    with _silent():
        try:
            return read()
        except (FormatError, MemoryError):
            raise
        except OSError as error:
            if error.errno in NO_DAMAGE:
                raise
            reason = str(error)
        except Exception as error:  # Orbax and its file formats raise many kinds for damaged bytes
            reason = str(error).split("\n")[0][:200] or type(error).__name__
        _wait_for_tasks()  # here the error, which holds some of them, is gone
    raise ReadError(reason)


def end_tasks() -> None:
    """Wait, silently, until no task of a failed read or write is left; one that writes would make directories anew."""
    with _silent():
        _wait_for_tasks()


def _wait_for_tasks() -> None:
    end = time.monotonic() + MAX_WAIT
    gc.collect(1)  # they are young, and a collection of everything takes up to a second
    while _tasks_of_orbax() and time.monotonic() < end:
        time.sleep(0.01)
        gc.collect()


def _tasks_of_orbax() -> list[object]:
    return [thing for thing in gc.get_objects() if type(thing) is CoroutineType and _is_of_orbax(thing)]


def _is_of_orbax(thing: object) -> bool:
    return isinstance(thing, CoroutineType) and "orbax" in Path(thing.cr_code.co_filename).parts


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Show no errors of the tasks that a failed read leaves behind; others as before."""
    show, logger = sys.unraisablehook, logging.getLogger("asyncio")

    def show_others(failed: "UnraisableHookArgs") -> None:
        closed = isinstance(failed.exc_value, RuntimeError) and str(failed.exc_value) == "Event loop is closed"
        if not closed and not _is_of_orbax(failed.object):
            show(failed)

    sys.unraisablehook = show_others
    logger.filters.insert(0, _is_of_another_library)  # before those that keep errors to show them later
    try:
        yield
    finally:
        logger.removeFilter(_is_of_another_library)
        sys.unraisablehook = show


def _is_of_another_library(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    text = f"{record.getMessage()} {error}"
    return not any(name in text for name in ("orbax", "tensorstore", "OCDBT", "zarr"))
