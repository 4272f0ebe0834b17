"""Traces of some steps, for TensorBoard's profile page."""

import contextlib
from collections.abc import Callable
from pathlib import Path

import jax

from transformer_jax.errors import InputError
from transformer_jax.training.callbacks import Callback, Step


class Profile(Callback):
    """Writes a trace of some steps, which TensorBoard's profile page opens (it needs the package xprof).

    Steps come in calls; the trace begins and ends at the end of one.

    Args:
        directory: of the run; the trace lies below `plugins/profile`.
        steps: `START:STOP`, from which step done to which.
        write: prints a line.
    """

    def __init__(self, directory: Path, steps: str, write: Callable[[str], None] = print) -> None:
        self._directory, self._write = directory, write
        self._start, self._stop = profiled_steps(steps)
        self._is_running = self._has_run = False

    def on_step(self, step: Step) -> None:
        """Begin, or end, where the step is one of the two."""
        if self._start <= step.number < self._stop and not self._is_running:
            jax.profiler.start_trace(str(self._directory))
            self._is_running = self._has_run = True
        elif step.number >= self._stop:
            self.close()

    def on_end(self, step: int) -> None:
        """End what has not ended, or say that there was nothing to trace."""
        if not self._has_run:
            self._write(f"No trace: no call of steps ended from step {self._start} on, and before {self._stop}")
        self.close()

    def close(self) -> None:
        """End the trace, and write it."""
        if self._is_running:
            self._is_running = False
            with contextlib.suppress(RuntimeError):  # somebody else has ended it
                jax.profiler.stop_trace()
            self._write(f"Trace: {self._directory / 'plugins' / 'profile'}")


def profiled_steps(text: str) -> tuple[int, int]:
    """The two steps of `START:STOP`.

    Raises:
        InputError: the text has another form, or the second is not above the first.
    """
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal() and len(text) < 25 and int(start) < int(stop)):
        raise InputError(f"profile is {text!r}; it must be START:STOP, two steps, the second the higher, as 100:150")
    return int(start), int(stop)
