"""SIGTERM and SIGINT: the training loop saves and stops after a step; elsewhere they end the command at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], object]


class Interrupted(KeyboardInterrupt):
    """A signal stopped a training, and everything is saved, or the command elsewhere; libraries clean up as for Ctrl-C.

    Args:
        signal_number: of the signal; the exit status is `128 + signal_number`.
        done: what was done about it.
    """

    def __init__(self, signal_number: int, done: str) -> None:
        super().__init__(f"{signal.Signals(signal_number).name}: {done}")
        self.exit_status = 128 + signal_number


class StopRequest:
    """While active, records the first SIGTERM or SIGINT; a second one ends the process at once.

    From the next `synchronize` on it is a request to all processes that train together.
    """

    def __init__(self) -> None:
        self._received: int | None = None  # number of the first signal
        self.signal_number: int | None = None  # of the one to which the training is to stop
        self._previous: dict[signal.Signals, signal._HANDLER] = {}  # handlers to restore

    def __enter__(self) -> "StopRequest":
        self._previous = _handle_signals(self._record)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._received is not None and error is None:
            signal.raise_signal(self._received)  # it came too late to be raised here

    def synchronize(self) -> None:
        """Learn of a signal to any of the processes, which all call it at the same point."""
        from transformer_jax.devices.processes import largest  # not before it is needed: JAX is large

        self.signal_number = int(largest(self._received or 0)) or None

    def raise_if_signalled(self, step: int) -> None:
        """Raise `Interrupted` if a signal was recorded; `step` steps are saved."""
        if self.signal_number is not None:
            done = f"stopped and saved after step {step}; the same command goes on from there"
            raise Interrupted(self.signal_number, done)

    def _record(self, signal_number: int, frame: FrameType | None) -> None:
        end_at_signals()  # at the second one
        self._received = signal_number


def raise_at_signals() -> list[Interrupted]:
    """Let the first SIGTERM or SIGINT raise `Interrupted` in the main thread, and a second one end the process at once.

    A `StopRequest` inside takes over while it is active.

    Returns:
        The error, once it was raised: something may swallow it.
    """
    raised: list[Interrupted] = []

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        end_at_signals()
        raised.append(Interrupted(signal_number, "stopped; the same command goes on from what is saved"))
        raise raised[0]

    _handle_signals(interrupt)
    return raised


def end_at_signals() -> None:
    """Let SIGTERM and SIGINT end this process at once and in silence, with 128 and the signal's number.

    For the time before a command's `run` and after it, when there is nothing to save and nothing to clean up, and after
    a first signal.
    """
    _handle_signals(lambda signal_number, frame: os._exit(128 + signal_number))


def _handle_signals(handler: Handler) -> dict[signal.Signals, "signal._HANDLER"]:
    """Set the handler of each signal that the process was not told to ignore (`nohup`, `&` in a script).

    Returns:
        The previous handlers.
    """
    if threading.current_thread() is not threading.main_thread():  # Python lets only the main thread set handlers
        return {}
    previous: dict[signal.Signals, signal._HANDLER] = {}
    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: set by another language's code
            previous[number] = signal.signal(number, handler)
    return previous
