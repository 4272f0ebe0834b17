"""Callbacks of a training, between its steps: check, log, stop early. A task adds its own with `create_callbacks`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.training.metrics import UNWEIGHTED, Sums, layer_norms, means, with_weight
from transformer_jax.trees import Params

T = TypeVar("T")
Log = Callable[[int, Mapping[str, float]], None]  # takes a step and its scalars by name


class Step(NamedTuple):
    """A step that is done."""

    number: int  # steps done, this one included
    sums: Sums  # of its metrics
    per_second: float  # steps per second of the call that it was part of
    waited: float = 0.0  # seconds for its batch, in which the devices may have been at the steps before
    ends_call: bool = True  # whether it is the last of the call that it was part of

    @property
    def metrics(self) -> dict[str, float]:
        """Mean of each metric over the step's batch, with `gradient_norm` and `learning_rate`."""
        return means([self.sums])


class Evaluation(NamedTuple):
    """An evaluation on the validation set."""

    step: int  # steps done
    epoch: int  # epochs done
    metrics: Mapping[str, float]  # mean of each metric
    params: Params  # that were evaluated


class Callback:
    """Gets values from the training loop at its events. A method that is not overridden does nothing.

    Raises:
        InputError: a class is defined with a method for an event that there is not, as `on_epoch_end`.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        events = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in events:
                raise InputError(f"{cls.__name__}.{name} is never called; the events are {', '.join(events)}")

    def on_step(self, step: Step) -> None:
        """After each step, in their order. The devices may work on later ones already."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """After an evaluation on the validation set, before the checkpoint that is saved with it."""

    def on_end(self, step: int) -> None:
        """After the last step and its evaluation, not after an error or a signal; `step` steps are done."""

    @property
    def wants_to_stop(self) -> bool:
        """Whether the training should end after the present evaluation."""
        return False

    def state(self) -> Any:  # JSON
        """State with which the callback goes on in another process; a copy of it is saved in each checkpoint."""
        return None

    def restore(self, state: Any) -> None:  # JSON
        """Go on from a state that `state` gave."""


def by_class(what: str, things: Sequence[T]) -> dict[str, T]:
    """The things by the names of their classes, under which a checkpoint keeps their states.

    Raises:
        InputError: two are of one class.
    """
    names = [type(thing).__name__ for thing in things]
    if doubles := [name for name in names if names.count(name) > 1]:
        raise InputError(f"there are two {what} of class {doubles[0]}; a checkpoint keeps their states by it")
    return dict(zip(names, things, strict=True))


def check_finite(step: Step) -> None:
    """Stop the training at the first step whose loss or gradient is not finite.

    Raises:
        FloatingPointError: it is this one.
        InputError: no element of its batch has a weight, so that there is no mean.
    """
    if step.sums["loss"][1] == 0:
        raise InputError(f"the batch of step {step.number} has the weight 0 in loss: {UNWEIGHTED}")
    for name in ("loss", "gradient_norm"):
        total, weight = step.sums[name]
        if not np.isfinite(value := np.divide(total, weight)):
            raise FloatingPointError(f"{name} is {value} at step {step.number}; training stops there")


class LogMetrics(Callback):
    """Logs `train/…` every few steps, means since the last entry.

    After each evaluation `val/…`, and with `log_norms` the norm of each layer's parameters,
    `parameter_norm/encoder/layers_0` for example.

    Args:
        log: gets every entry.
        every: steps between entries.
        steps_per_epoch: an epoch always ends in an entry.
        log_norms: whether the norms of the parameters are logged.
    """

    def __init__(self, log: Log, every: int, steps_per_epoch: int, *, log_norms: bool = False) -> None:
        self._log, self._every, self._steps_per_epoch, self._log_norms = log, every, steps_per_epoch, log_norms
        self._window: list[Sums] = []  # of the steps since the last entry

    def on_step(self, step: Step) -> None:
        """Add one step, and log where an entry is due."""
        self._window.append(with_weight(step.sums))
        if step.number % self._every == 0 or step.number % self._steps_per_epoch == 0:
            names = dict.fromkeys(name for sums in self._window for name in sums)
            metrics = {name: means([{name: s[name]} for s in self._window if name in s])[name] for name in names} | {
                "learning_rate": float(np.asarray(step.sums["learning_rate"][0])),  # of this step, not the mean
                "steps_per_second": step.per_second,
            }
            self._window = []
            self._log(step.number, {f"train/{name}": value for name, value in metrics.items()})

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Log an evaluation."""
        scalars = {f"val/{name}": value for name, value in evaluation.metrics.items()}
        if self._log_norms:
            norms = jax.jit(layer_norms)(evaluation.params)
            scalars |= {f"parameter_norm/{layer}": float(norm) for layer, norm in norms.items()}
        self._log(evaluation.step, scalars)

    def state(self) -> list[dict[str, tuple[float, float]]]:
        """The sums of the steps since the last entry."""
        return [jax.tree.map(float, sums) for sums in self._window]

    def restore(self, state: list[dict[str, Sequence[float]]]) -> None:
        """Go on with these sums."""
        self._window = [{name: (total, weight) for name, (total, weight) in sums.items()} for sums in state]


class EarlyStopping(Callback):
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

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Compare an evaluation with the best one so far."""
        value = evaluation.metrics[self._criterion.metric]
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
