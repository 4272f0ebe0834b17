"""What is shown of a step's program if the settings ask for it: its attention and memory, profiler traces."""

from collections.abc import Callable
from pathlib import Path

import jax

from transformer_jax.fit.runner import StepRunner
from transformer_jax.training.callbacks import Callback, Step
from transformer_jax.training.checks import profiled_steps


class ShowProgram(Callback):
    """Prints, after the first step, which attention a step runs and why, and how much device memory it takes.

    Args:
        write: prints a line.
        runner: runs the steps.
    """

    def __init__(self, write: Callable[[str], None], runner: StepRunner) -> None:
        self._write = write
        self._runner = runner
        self._is_first = True

    def on_step(self, step: Step) -> None:
        """Print the lines, if it is the first step."""
        if self._is_first:
            for line in dict.fromkeys(map(str, self._runner.attention)):
                self._write(line)
            memory = self._runner.program.memory
            if memory is not None:
                self._write(str(memory))
        self._is_first = False


class Profile(Callback):
    """Writes a profiler trace of some steps for TensorBoard's profile page (which needs the package xprof).

    Steps run in calls of several. The trace begins at the end of the first call that reaches START, and ends at the end
    of the next call that reaches STOP.

    Args:
        directory: of the run; the trace is written below `plugins/profile`.
        steps: `START:STOP`.
        write: prints a line.
    """

    def __init__(self, directory: Path, steps: str, write: Callable[[str], None] = print) -> None:
        self._directory = directory
        self._write = write
        self._start, self._stop = profiled_steps(steps)
        self._is_running = self._has_run = False

    def on_step(self, step: Step) -> None:
        """Begin or end the trace at the end of a call."""
        if not step.ends_call or step.number < self._start:
            return
        if self._is_running and step.number >= self._stop:
            self.close()
        elif not self._has_run:
            jax.profiler.start_trace(str(self._directory))
            self._is_running = self._has_run = True

    def on_end(self, step: int) -> None:
        """End a running trace, or report that none was begun."""
        if not self._has_run:
            self._write(f"No trace: no call has reached step {self._start}")
        self.close()

    def close(self) -> None:
        """End the trace, and write it."""
        if self._is_running:
            self._is_running = False
            try:
                jax.profiler.stop_trace()
            except RuntimeError as error:  # other code has ended it, or it can't be written
                self._write(f"No trace: {error}")
            else:
                self._write(f"Trace: {self._directory / 'plugins' / 'profile'}")
