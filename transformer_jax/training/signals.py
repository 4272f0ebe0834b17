"""SIGTERM and SIGINT as a request to stop, which the training loop grants after a step."""

import os
import signal
import threading
from types import FrameType, TracebackType


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """The training stopped at a signal, and everything is saved. The exit status is `128 + signal_number`."""

    def __init__(self, signal_number: int, step: int) -> None:
        name = signal.Signals(signal_number).name
        super().__init__(f"{name}: stopped and saved after step {step}; the same command goes on from there")
        self.exit_status = 128 + signal_number


class StopRequest:
    """While active, records the first SIGTERM or SIGINT; a second one ends the process at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None  # of the first signal
        self._previous: dict[signal.Signals, signal._HANDLER] = {}  # handlers to restore

    def __enter__(self) -> "StopRequest":
        # Python lets only the main thread set handlers; in another thread no signal is recorded.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def raise_if_signalled(self, step: int) -> None:
        """Raise `Interrupted` if a signal was recorded; `step` steps are saved."""
        if self.signal_number is not None:
            raise Interrupted(self.signal_number, step)

    def _record(self, signal_number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        self.signal_number = signal_number
