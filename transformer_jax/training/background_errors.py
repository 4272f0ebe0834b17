"""Errors in the threads of other libraries, while a command runs whose main thread reports them."""

import contextlib
import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

from transformer_jax.training.signals import Stopped

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

LOGGERS = ("absl", "asyncio")  # through which Orbax and TensorBoard show errors of their threads


class BackgroundErrors:
    """While active, keeps errors of background threads, which libraries would print as they come, many times over.

    The main thread waits for these threads and raises what it finds. If it ends without an error, the first one that
    was kept is raised (of a thread) or printed (of a logger, or where Python cannot raise: `sys.unraisablehook`). If it
    ends with a traceback, the first one stands below it.
    """

    def __init__(self) -> None:
        self._first: str | None = None  # as it would have been printed
        self._error: BaseException | None = None  # the first of a thread
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "BackgroundErrors":
        self._undo.callback(setattr, threading, "excepthook", threading.excepthook)
        threading.excepthook = self._keep_of_thread
        self._undo.callback(setattr, sys, "unraisablehook", sys.unraisablehook)
        sys.unraisablehook = self._keep_unraisable
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.addFilter(self._keep_record)
            self._undo.callback(logger.removeFilter, self._keep_record)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._undo.close()
        if error is None and self._error is not None:
            raise self._error
        if error is None and self._first is not None:
            print(self._first, file=sys.stderr)
        if error is not None and self._first is not None:
            error.add_note(f"Before that, in the background:\n{self._first}")

    def _keep(self, text: str) -> None:
        self._first = self._first or text

    def _keep_of_thread(self, failed: threading.ExceptHookArgs) -> None:
        if failed.exc_type is SystemExit:  # which ends a thread without an error
            return
        self._keep("".join(traceback.format_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)))
        self._error = self._error or failed.exc_value

    def _keep_unraisable(self, failed: "UnraisableHookArgs") -> None:
        if isinstance(failed.exc_value, Stopped):
            failed.exc_value.send_again()
            return
        trace = traceback.format_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)
        self._keep(f"{failed.err_msg or 'Exception ignored in'}: {failed.object!r}\n{''.join(trace)}")

    def _keep_record(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.ERROR:
            return record.name != "absl"  # Orbax warns of each file that it misses, and then raises
        self._keep(logging.Formatter().format(record))
        return False


def silence_background() -> None:
    """Show no more errors of other threads in this process, which ends with an error of the main thread's."""
    threading.excepthook = lambda failed: None
    sys.unraisablehook = lambda failed: None
    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
