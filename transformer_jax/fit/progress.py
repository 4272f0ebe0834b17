"""Progress of a training run: a bar in a terminal or a notebook, else a line every few seconds."""

import sys
import time
from pathlib import Path

import jax
from flax.traverse_util import flatten_dict
from tqdm import tqdm

from transformer_jax.config import format_metric
from transformer_jax.devices.processes import say
from transformer_jax.fitted.fitted import CompiledTask
from transformer_jax.training.callbacks import Callback, Step
from transformer_jax.trees import FROZEN, Params, split_variables

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_VALUES = 0.5  # in a bar: computing means costs as much as a small step
SECONDS_BEFORE_ESTIMATE = 0.5  # of steps, before the remaining time is estimated from their rate


class Progress(Callback):
    """Shows the latest loss and metrics: in a bar in a terminal or a notebook, else in a line every ten seconds.

    Args:
        first_step: step at which training begins.
        num_steps: step at which training ends.
        quiet: print nothing.
    """

    def __init__(self, first_step: int, num_steps: int, *, quiet: bool) -> None:
        is_terminal = sys.stderr is not None and sys.stderr.isatty()
        # None if there is no bar: even a disabled tqdm would start a thread and take a semaphore.
        self._bar: tqdm | None = None
        if not quiet and (is_terminal or _is_notebook()):
            self._bar = tqdm(total=num_steps, initial=first_step, unit="step")
        self._num_steps = num_steps
        self._quiet = quiet
        self._shown_at = time.monotonic()
        self._last: Step | None = None
        self._num_shown = 0  # steps so far
        self._seconds = 0.0  # their time, without compilation

    def on_step(self, step: Step) -> None:
        """Advance by one step, and show its metrics if the last ones were shown long enough ago."""
        self._last = step
        self._num_shown += 1
        self._seconds += step.seconds
        if self._bar is not None:
            self._bar.update()
        pause = SECONDS_BETWEEN_LINES if self._bar is None else SECONDS_BETWEEN_VALUES
        if time.monotonic() - self._shown_at < pause:
            return
        self._shown_at = time.monotonic()
        if self._bar is None:
            self.write(f"Step {step.number} of {self._num_steps}: {self.status()}")
        else:
            self._bar.set_postfix_str(_values(step), refresh=False)

    def status(self) -> str:
        """Loss and metrics of the latest step, with the steps per second and the time left once these are known.

        Empty if a bar shows them.
        """
        if self._last is None or self._bar is not None:
            return ""
        if self._seconds < SECONDS_BEFORE_ESTIMATE:
            return _values(self._last)
        rate = self._num_shown / self._seconds
        left = tqdm.format_interval((self._num_steps - self._last.number) / rate)
        return f"{_values(self._last)}, {rate:.3g} steps/s, {left} left"

    def write(self, line: str) -> None:
        """Print a line, above the bar if there is one, and flush it."""
        if self._bar is not None:
            self._bar.write(line)
        elif not self._quiet:
            print(line, flush=True)

    def close(self) -> None:
        """Close the bar, which stays visible."""
        if self._bar is not None:
            self._bar.close()


def parameter_table(params: Params) -> str:
    """One line for each array of the parameters: its path, its shape and its size; then the total."""
    arrays = flatten_dict(params, sep="/")
    width = max(map(len, [*arrays, "total"]))
    total = sum(array.size for array in arrays.values())
    lines = []
    for path, array in arrays.items():
        lines.append(f"{path:{width}}  {array.shape!s:>12}  {array.size:>12,}")
    lines.append(f"{'total':{width}}  {'':>12}  {total:>12,}")
    return "\n".join(lines)


def _is_notebook() -> bool:
    # Every kernel imports IPython; so may other processes, but their shell, if any, has no kernel.
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _values(step: Step) -> str:
    """`loss 0.1234, accuracy 56.78%`: the loss, then the task's other metrics."""
    metrics = step.metrics
    others = {name for name in metrics if "/" not in name}
    others -= {"gradient_norm", "learning_rate", "loss"}
    names = ["loss", *sorted(others)]
    return ", ".join(f"{name} {format_metric(name, metrics[name])}" for name in names)


def announce(compiled: CompiledTask, params: Params, num_steps: int, directory: Path) -> None:
    """Print the task, its size, the number of steps, the devices and the run's directory."""
    if compiled.task.config.verbose:
        say(parameter_table(params))
    trained, variables = split_variables(params)
    num_trained = sum(leaf.size for leaf in jax.tree.leaves(trained))
    num_frozen = sum(leaf.size for leaf in jax.tree.leaves(variables.get(FROZEN)))
    frozen = f" to train and {num_frozen:,} frozen" if num_frozen else ""
    say(
        f"{compiled.task.name}: {num_trained:,} parameters{frozen}, {num_steps:,} steps on"
        f" {compiled.devices}, into {directory}"
    )
    settings = getattr(compiled.task.model, "settings", None)
    positions = getattr(settings, "positions", None)
    is_own = not type(positions).__module__.startswith("transformer_jax.")
    if positions is not None and is_own:
        say(f"Positions: {positions}, which replaces --positions {compiled.task.config.positions}")
