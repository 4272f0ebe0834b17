"""Reading with Orbax, which leaves tasks of a closed event loop behind where an array can't be read."""

import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.runs.format import FormatError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

Result = TypeVar("Result")


class ReadError(Exception):
    """A checkpoint can't be read, for the reason that is the message."""


def read_quietly(read: Callable[[], Result]) -> Result:
    """Call a function that reads with Orbax, whose error is the only one that is shown if it fails.

    Orbax closes its event loop at the first array that can't be read. TensorStore, which still reads the others, can't
    call back then, and Python would print an error for each, at any later time; asyncio would do so for each task when
    it is collected.

    Raises:
        FormatError: as `read` does.
        ReadError: in the place of any other error.
    """
    show = sys.unraisablehook
    sys.unraisablehook = _without_closed_loops(show)
    with _silent_tasks():
        try:
            result = read()
        except FormatError:
            raise
        except Exception as error:  # Orbax and its file formats raise many kinds for damaged bytes
            reason = str(error).split("\n")[0][:200] or type(error).__name__
        else:
            sys.unraisablehook = show  # it stays only after a failure
            return result
        gc.collect()  # the tasks, while they are silent; the error is gone, which kept them alive
    raise ReadError(reason)


def _without_closed_loops(show: "Callable[[UnraisableHookArgs], object]") -> "Callable[[UnraisableHookArgs], None]":
    def show_others(failed: "UnraisableHookArgs") -> None:
        if not (isinstance(failed.exc_value, RuntimeError) and str(failed.exc_value) == "Event loop is closed"):
            show(failed)

    return show_others


@contextlib.contextmanager
def _silent_tasks() -> Iterator[None]:
    logger = logging.getLogger("asyncio")

    def refuse(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
