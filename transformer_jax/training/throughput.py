"""Device utilization of a training run: examples and FLOPs per second, waiting for data, memory, profiler traces."""

from collections.abc import Callable
from pathlib import Path

import jax

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.training.callbacks import Callback, Log, Step
from transformer_jax.training.runner import StepRunner


class ShowProgram(Callback):
    """Prints, after the first step, which attention a step runs and why, and how much device memory it takes.

    Args:
        write: prints a line.
        runner: runs the steps.
    """

    def __init__(self, write: Callable[[str], None], runner: StepRunner) -> None:
        self._write, self._runner, self._is_first = write, runner, True

    def on_step(self, step: Step) -> None:
        """Print the lines, if it is the first step."""
        if self._is_first:
            for line in dict.fromkeys(map(str, self._runner.attention)):
                self._write(line)
            if (memory := self._runner.program.memory) is not None:
                self._write(str(memory))
        self._is_first = False


class LogThroughput(Callback):
    """Logs how fast and how busy the devices are, whenever a log entry is due.

    `throughput/examples_per_second`; `throughput/seconds_waiting_for_data` since the last entry;
    `throughput/flops_per_second` of all devices, counted before compiler optimizations;
    `throughput/bytes_in_use/<device>`, if the devices report it.

    Args:
        log: gets the entries.
        config: settings of the run.
        runner: runs the steps.
    """

    def __init__(self, log: Log, config: TrainingConfig, runner: StepRunner) -> None:
        self._log, self._config, self._runner = log, config, runner
        self._waited = 0.0

    def on_step(self, step: Step) -> None:
        """Log, if an entry is due."""
        self._waited += step.waited
        if step.number % self._config.log_every:
            return
        scalars = {
            "examples_per_second": step.per_second * self._runner.rows_per_step,
            "seconds_waiting_for_data": self._waited,
        }
        self._waited = 0.0
        if (flops := self._runner.flops_per_step) is not None:
            scalars["flops_per_second"] = flops * step.per_second
        for device in self._runner.devices.mesh.local_devices:
            if (in_use := (device.memory_stats() or {}).get("bytes_in_use")) is not None:
                scalars[f"bytes_in_use/{device.id}"] = float(in_use)
        self._log(step.number, {f"throughput/{name}": value for name, value in scalars.items()})


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
        self._directory, self._write = directory, write
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


def profiled_steps(text: str, num_steps: int | None = None) -> tuple[int, int]:
    """Parse the two steps of `START:STOP`.

    Args:
        text: START:STOP.
        num_steps: number of steps of the run; None if not known yet.

    Raises:
        InputError: the text has another form, STOP is not above START, or START is not below `num_steps`.
    """
    start, _, stop = text.partition(":")
    if not (start.isdecimal() and stop.isdecimal() and len(text) < 25 and int(start) < int(stop)):
        raise InputError(
            f"profile is {text!r}; it must be START:STOP with START below STOP, such as 100:150"
        )
    if num_steps is not None and int(start) >= num_steps:
        raise InputError(
            f"profile is {text!r}; the first step must be below {num_steps}, the number of steps"
        )
    return int(start), int(stop)
