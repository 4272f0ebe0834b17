"""SIGTERM and SIGINT as a wish that the training grants when a step is done."""

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


class InterruptionRequest:
    """While active, notes the first SIGTERM or SIGINT in `signal_number`; a second one ends the process at once."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __enter__(self) -> "InterruptionRequest":
        # Python lets the main thread alone set handlers; elsewhere nothing is noted.
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)}
        else:
            self._previous = {}
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, signal_number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            signal.signal(signal_number, signal.SIG_DFL)
            os.kill(os.getpid(), signal_number)
        self.signal_number = signal_number
