"""What every training does between steps: check the loss, log the metrics, stop early."""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import numpy as np

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError, InputWarning, level_of_user
from transformer_jax.fit.runner import StepRunner
from transformer_jax.training.callbacks import Callback, Epoch, Evaluation, Log, Step
from transformer_jax.training.metrics import (
    UNWEIGHTED,
    LossTerms,
    Sums,
    layer_norms,
    means_of_steps,
)

T = TypeVar("T")


@dataclasses.dataclass(eq=False)
class SumsOfWindow(Callback):
    """Base class of callbacks that collect the sums of steps, which a checkpoint keeps."""

    sums: list[Sums] = dataclasses.field(default_factory=list, init=False)

    def state(self) -> list[Sums]:
        """The sums, as numbers."""
        return jax.tree.map(float, self.sums)

    def restore(self, state: list[Sums]) -> None:
        """Continue with these sums."""
        self.sums = [*state]


@dataclasses.dataclass(eq=False)
class LogMetrics(SumsOfWindow):
    """Logs the training metrics every few steps, as means since the last entry, `train/…`.

    After each evaluation, logs `val/…`, and with `log_norms` the norm of each layer's parameters, such as
    `parameter_norm/encoder/layers_0`.
    """

    log: Log  # gets every entry
    every: int  # steps between entries
    steps_per_epoch: int  # an epoch always ends with an entry
    log_norms: bool = False  # whether the norms of the parameters are logged
    num_steps: int | None = None  # of the training, which always ends with an entry
    # factors of the terms of the loss
    loss_terms: LossTerms = dataclasses.field(default_factory=dict)

    def on_step(self, step: Step) -> None:
        """Add one step, and log if an entry is due."""
        self.sums.append(step.sums)
        if not self.is_due(step.number):
            return
        metrics = means_of_steps(self.sums, self.loss_terms)
        self.sums = []
        # of this step, not the mean
        metrics["learning_rate"] = float(np.asarray(step.sums["learning_rate"][0]))
        self.log(step.number, {f"train/{name}": value for name, value in metrics.items()})

    def is_due(self, step: int) -> bool:
        """Whether an entry is logged after this step."""
        return not step % self.every or not step % self.steps_per_epoch or step == self.num_steps

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation."""
        scalars = {f"val/{name}": value for name, value in evaluation.metrics.items()}
        if self.log_norms:
            norms = jax.jit(layer_norms)(evaluation.params)
            scalars |= {f"parameter_norm/{layer}": float(norm) for layer, norm in norms.items()}
        self.log(evaluation.step, scalars)


class LogThroughput(Callback):
    """Logs how fast and how busy the devices have been since the last entry.

    `throughput/steps_per_second` and `throughput/examples_per_second`; `throughput/seconds_waiting_for_data`;
    `throughput/flops_per_second` of matrix products on all devices, and `throughput/share_of_peak` of their peak in
    bfloat16 if it is known (`transformer_jax.devices.flops`);
    `throughput/bytes_in_use/<device>`, if the devices report it.

    Args:
        log: gets the entries.
        is_due: whether an entry is logged after this step.
        runner: runs the steps.
    """

    def __init__(self, log: Log, is_due: Callable[[int], bool], runner: StepRunner) -> None:
        self._log = log
        self._is_due = is_due
        self._runner = runner
        self._num_steps, self._seconds, self._waited = 0, 0.0, 0.0  # since the last entry

    def on_step(self, step: Step) -> None:
        """Log, if an entry is due."""
        self._num_steps += 1
        self._seconds += step.seconds
        self._waited += step.waited
        if not self._is_due(step.number):
            return
        rate = self._num_steps / self._seconds
        scalars = {
            "steps_per_second": rate,
            "examples_per_second": rate * self._runner.rows_per_step,
            "seconds_waiting_for_data": self._waited,
        }
        self._num_steps = 0
        self._seconds = 0.0
        self._waited = 0.0
        flops = self._runner.flops_per_step
        if flops is not None:
            scalars["flops_per_second"] = flops * rate
            from transformer_jax.devices.flops import peak_of  # only for the log

            peak = peak_of(self._runner.devices.kind)
            if peak is not None:
                scalars["share_of_peak"] = flops * rate / (peak * self._runner.devices.mesh.size)
        for device in self._runner.devices.mesh.local_devices:
            memory = device.memory_stats() or {}
            if "bytes_in_use" in memory:
                scalars[f"bytes_in_use/{device.id}"] = float(memory["bytes_in_use"])
        self._log(step.number, {f"throughput/{name}": value for name, value in scalars.items()})

    def state(self) -> list[int | float]:
        """Number of steps, seconds and seconds of waiting since the last entry."""
        return [self._num_steps, self._seconds, self._waited]

    def restore(self, state: list[int | float] | None) -> None:
        """Continue with these numbers; older checkpoints have none."""
        if state is not None:
            self._num_steps = int(state[0])
            self._seconds = state[1]
            self._waited = state[2]


@dataclasses.dataclass(eq=False)
class EndsOfEpochs(SumsOfWindow):
    """Calls `on_epoch` of other callbacks."""

    callbacks: Sequence[Callback]
    steps_per_epoch: int
    # whether an evaluation follows this step, the last one of an epoch
    is_evaluated: Callable[[Step], bool]
    loss_terms: LossTerms  # factors of the terms of the loss

    def on_step(self, step: Step) -> None:
        """Add one step; call, if it ends an epoch without an evaluation."""
        self.sums.append(step.sums)
        if step.number % self.steps_per_epoch == 0 and not self.is_evaluated(step):
            self._call(step.epoch, None)

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Call, if the evaluation is at the end of an epoch."""
        if evaluation.step % self.steps_per_epoch == 0:
            self._call(evaluation.epoch, evaluation)

    def _call(self, number: int, evaluation: Evaluation | None) -> None:
        # a checkpoint of an older version has no sums
        metrics = means_of_steps(self.sums, self.loss_terms) if self.sums else {}
        self.sums = []
        for callback in self.callbacks:
            callback.on_epoch(Epoch(number, metrics, evaluation))


@dataclasses.dataclass(eq=False)
class EarlyStopping(Callback):
    """Stops training after a number of evaluations without improvement."""

    criterion: Criterion  # decides which evaluation is better; an equal value is no improvement
    patience: int  # number of evaluations; 0 disables early stopping
    best: float = math.nan  # value so far; NaN before the first evaluation
    evaluations_since_best: int = 0

    @property
    def wants_to_stop(self) -> bool:
        """Whether the patience is exhausted."""
        return 0 < self.patience <= self.evaluations_since_best

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Compare an evaluation with the best one so far."""
        value = evaluation.metrics[self.criterion.metric]
        if self.criterion.is_better(value, self.best) and value != self.best:
            self.best = value
            self.evaluations_since_best = 0
        else:
            self.evaluations_since_best += 1

    def state(self) -> dict[str, float]:
        """The best value (NaN before the first evaluation), and the number of evaluations since."""
        return {"best": self.best, "evaluations_since_best": self.evaluations_since_best}

    def restore(self, state: dict[str, float]) -> None:
        """Continue with this best value and number of evaluations."""
        self.best = state["best"]
        self.evaluations_since_best = int(state["evaluations_since_best"])


def by_class(what: str, things: Sequence[T]) -> dict[str, T]:
    """Return the objects by class name, under which a checkpoint stores their states.

    Raises:
        InputError: two objects are of the same class.
    """
    names = [type(thing).__name__ for thing in things]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"there are two {what} of class {name}; checkpoints store one state per class"
            )
    return dict(zip(names, things, strict=True))


def check_finite(step: Step) -> None:
    """Stop training at the first step whose loss or gradient is not finite; warn if the first gradient is 0.

    Raises:
        FloatingPointError: the loss or the gradient of this step is not finite.
        InputError: all elements of its batch have the weight 0, so that the mean is undefined.
    """
    if step.sums["loss"][1] == 0:
        raise InputError(f"the batch of step {step.number} has the weight 0 in loss: {UNWEIGHTED}")
    for name in ("loss", "gradient_norm"):
        total, weight = step.sums[name]
        value = np.divide(total, weight)
        if not np.isfinite(value):
            raise FloatingPointError(
                f"{name} is {value} at step {step.number}; training stops there"
            )
    if step.number == 1 and value == 0:  # of gradient_norm
        warnings.warn(
            "gradient_norm is 0 at step 1; does loss depend on the parameters, and not through argmax"
            " or ==?",
            InputWarning,
            stacklevel=level_of_user(),
        )
