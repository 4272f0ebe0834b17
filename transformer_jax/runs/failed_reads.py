"""Reading with Orbax, which leaves tasks of a closed event loop behind where an array can't be read."""

import errno
import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from transformer_jax.runs.format import FormatError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

Result = TypeVar("Result")

# Errors that may be gone the next time; a checkpoint that is taken for damaged is deleted in the end.
NO_DAMAGE = (errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class ReadError(Exception):
    """A checkpoint can't be read, for the reason that is the message."""


def read_quietly(read: Callable[[], Result]) -> Result:
    """Call a function that reads with Orbax, whose error is the only one that is shown if it fails.

    Orbax closes its event loop at the first array that can't be read. TensorStore, which still reads the others, can't
    call back then, and Python would print an error for each, at any later time; asyncio would do so for each task when
    it is collected.

    Raises:
        FormatError, MemoryError, OSError: as `read` does; of the operating system's errors those of `NO_DAMAGE`.
        ReadError: in the place of any other error.
    """
    show, logger = sys.unraisablehook, logging.getLogger("asyncio")
    sys.unraisablehook = _without_closed_loops(show)
    has_failed_before = _is_of_another_library in logger.filters
    logger.addFilter(_is_of_another_library)
    reason = None
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
    finally:
        if reason is None:  # both stay after a failure only
            sys.unraisablehook = show
            if not has_failed_before:
                logger.removeFilter(_is_of_another_library)
    raise ReadError(reason)


def _without_closed_loops(show: "Callable[[UnraisableHookArgs], object]") -> "Callable[[UnraisableHookArgs], None]":
    def show_others(failed: "UnraisableHookArgs") -> None:
        if not (isinstance(failed.exc_value, RuntimeError) and str(failed.exc_value) == "Event loop is closed"):
            show(failed)

    return show_others


def _is_of_another_library(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    text = f"{record.getMessage()} {error}"
    return not any(name in text for name in ("orbax", "tensorstore", "OCDBT", "zarr"))
