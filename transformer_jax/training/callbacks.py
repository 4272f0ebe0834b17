"""Actions of a training between its steps: check, log, show progress, save in time, stop early."""

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from transformer_jax.config import Criterion
from transformer_jax.training.metrics import Sums, means

Log = Callable[[int, Mapping[str, float]], None]  # takes a step and its scalars by name


class Action:
    """An action with hooks that the training loop calls with values. A hook that is not overridden does nothing."""

    def on_step(self, step: int, sums: Sums, steps_per_second: float) -> None:
        """After each step, in their order; `sums` are those of the step's metrics."""

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """After an evaluation on the validation set, with its mean metrics."""

    @property
    def wants_to_stop(self) -> bool:
        """Whether the training should end after the present evaluation."""
        return False

    def state(self) -> Any:  # Any: JSON
        """The action's state, for the checkpoint; None for none."""
        return None

    def restore(self, state: Any) -> None:  # Any: JSON
        """Go on from a state that `state` gave."""


class CheckFinite(Action):
    """Stops the training with an error at the first step whose loss or gradient is not finite."""

    def on_step(self, step: int, sums: Sums, steps_per_second: float) -> None:
        """Check one step.

        Raises:
            FloatingPointError: the loss or the gradient is not finite.
        """
        for name in ("loss", "gradient_norm"):
            total, weight = sums[name]
            if not np.isfinite(value := np.divide(total, weight)):
                raise FloatingPointError(f"{name} is {value} at step {step}; training stops there")


class LogMetrics(Action):
    """Logs `train/…` every few steps, means since the last entry, and `val/…` after each evaluation.

    Args:
        logs: that get every entry.
        every: steps between entries.
        steps_per_epoch: an epoch always ends in an entry.
    """

    def __init__(self, logs: Sequence[Log], every: int, steps_per_epoch: int) -> None:
        self._logs, self._every, self._steps_per_epoch = logs, every, steps_per_epoch
        self._window: list[Sums] = []  # of the steps since the last entry

    def on_step(self, step: int, sums: Sums, steps_per_second: float) -> None:
        """Add one step, and log where an entry is due."""
        self._window.append(sums)
        if step % self._every == 0 or step % self._steps_per_epoch == 0:
            metrics = means(self._window) | {
                "learning_rate": float(np.asarray(sums["learning_rate"][0])),  # of this step, not the mean
                "steps_per_second": steps_per_second,
            }
            self._window = []
            self._log(step, {f"train/{name}": value for name, value in metrics.items()})

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log an evaluation."""
        self._log(step, {f"val/{name}": value for name, value in metrics.items()})

    def state(self) -> list[dict[str, tuple[float, float]]]:
        """The sums of the steps since the last entry."""
        return [jax.tree.map(float, sums) for sums in self._window]

    def restore(self, state: list[dict[str, Sequence[float]]]) -> None:
        """Go on with these sums."""
        self._window = [{name: (total, weight) for name, (total, weight) in sums.items()} for sums in state]

    def _log(self, step: int, scalars: Mapping[str, float]) -> None:
        for log in self._logs:
            log(step, scalars)


class ProgressBar(Action):
    """A bar on the terminal, with the latest loss and accuracy.

    Args:
        step: at which the training begins.
        num_steps: at which it ends.
    """

    def __init__(self, step: int, num_steps: int) -> None:
        self._bar = tqdm(total=num_steps, initial=step, unit="step", disable=None)

    def on_step(self, step: int, sums: Sums, steps_per_second: float) -> None:
        """Advance by one step."""
        self._bar.update()

    def log(self, step: int, scalars: Mapping[str, float]) -> None:
        """Show the training's loss and accuracy."""
        shown = {name: f"{scalars[f'train/{name}']:.4f}" for name in ("loss", "accuracy") if f"train/{name}" in scalars}
        if shown:
            self._bar.set_postfix(shown)

    def write(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.write(line)

    def __enter__(self) -> "ProgressBar":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._bar.close()


class EarlyStopping(Action):
    """Wants to stop after a number of evaluations without a better model.

    Args:
        criterion: says which evaluation is better; an equal one is not.
        patience: evaluations, 0 for never.
    """

    def __init__(self, criterion: Criterion, patience: int) -> None:
        self._criterion, self._patience = criterion, patience
        self._best = float("nan")
        self._evaluations_since_best = 0

    @property
    def wants_to_stop(self) -> bool:
        """Whether the patience is at its end."""
        return 0 < self._patience <= self._evaluations_since_best

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Compare an evaluation with the best one so far."""
        value = metrics[self._criterion.metric]
        if self._criterion.is_better(value, self._best) and value != self._best:
            self._best, self._evaluations_since_best = value, 0
        else:
            self._evaluations_since_best += 1

    def state(self) -> dict[str, float]:
        """The best value, NaN before the first, and the evaluations since."""
        return {"best": self._best, "evaluations_since_best": self._evaluations_since_best}

    def restore(self, state: dict[str, float]) -> None:
        """Go on with these."""
        self._best, self._evaluations_since_best = state["best"], int(state["evaluations_since_best"])


class SaveTimes:
    """When a checkpoint is due, beside those after evaluations.

    Args:
        every: steps between checkpoints, 0 for none.
        minutes: between checkpoints.
        clock: gives seconds.
    """

    def __init__(self, every: int, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every, self._seconds, self._clock = every, 60 * minutes, clock
        self._saved_at = clock()

    def is_due(self, before: int, after: int) -> bool:
        """Whether to save after the steps from `before` to `after`, which come in one call."""
        by_steps = self._every > 0 and after // self._every > before // self._every
        return by_steps or self._clock() - self._saved_at > self._seconds

    def restart(self) -> None:
        """Count the minutes from now: a checkpoint was saved."""
        self._saved_at = self._clock()
