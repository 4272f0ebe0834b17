"""SIGTERM and SIGINT: the training loop saves and stops after a step; elsewhere they end the command at once."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)

Handler = Callable[[int, FrameType | None], object]


class Interrupted(KeyboardInterrupt):
    """A signal stopped training (everything was saved) or another command; libraries clean up as for Ctrl-C.

    Args:
        signal_number: number of the signal; the exit status is `128 + signal_number`.
        done: what was done, for the message.
    """

    def __init__(self, signal_number: int, done: str) -> None:
        super().__init__(f"{signal.Signals(signal_number).name}: {done}")
        self.exit_status = 128 + signal_number


class StopRequest:
    """While active, records the first SIGTERM or SIGINT; a second one ends the process at once.

    The next `synchronize` makes it a request to all processes that train together.
    """

    def __init__(self) -> None:
        self._received: int | None = None  # number of the first signal
        self.signal_number: int | None = None  # number of the signal at which all processes stop
        self._previous: dict[signal.Signals, signal._HANDLER] = {}  # handlers to restore

    def __enter__(self) -> "StopRequest":
        self._previous = _handle_signals(self._record)
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._received is not None and error is None:
            signal.raise_signal(self._received)  # it came too late to be raised here

    def synchronize(self) -> None:
        """Share a signal that any process has received; all processes call this at the same point."""
        # imported late, since JAX is slow to import
        from transformer_jax.devices.processes import largest

        self.signal_number = int(largest(self._received or 0)) or None

    def raise_if_signalled(self, step: int) -> None:
        """Raise `Interrupted` if a signal was recorded; `step` steps are saved."""
        if self.signal_number is not None:
            done = f"stopped and saved after step {step}; the same command resumes from there"
            raise Interrupted(self.signal_number, done)

    def _record(self, signal_number: int, frame: FrameType | None) -> None:
        end_at_signals()  # at the second one
        self._received = signal_number


def raise_at_signals() -> list[Interrupted]:
    """Let the first SIGTERM or SIGINT raise `Interrupted` in the main thread, and a second one end the process at once.

    A `StopRequest` takes over while it is active.

    Returns:
        A list that gets the error when it is raised, since other code may swallow the error.
    """
    raised: list[Interrupted] = []

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        end_at_signals()
        raised.append(
            Interrupted(
                signal_number, "stopped; the same command resumes a training from what is saved"
            )
        )
        raise raised[0]

    _handle_signals(interrupt)
    return raised


def end_at_signals() -> None:
    """Let SIGTERM and SIGINT end this process at once and silently, with the exit status 128 + the signal's number.

    Used before and after a command's `run`, when there is nothing to save or clean up, and after a first signal.
    """
    _handle_signals(lambda signal_number, frame: os._exit(128 + signal_number))


def _handle_signals(handler: Handler) -> dict[signal.Signals, "signal._HANDLER"]:
    """Set the handler of each signal that the process was not told to ignore (`nohup`, `&` in a script).

    Returns:
        The previous handlers.
    """
    # Python lets only the main thread set handlers
    if threading.current_thread() is not threading.main_thread():
        return {}
    previous: dict[signal.Signals, signal._HANDLER] = {}
    for number in SIGNALS:
        # None: set by another language's code
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            previous[number] = signal.signal(number, handler)
    return previous
