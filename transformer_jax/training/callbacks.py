"""Training callbacks, called between steps: log, stop early. A task adds its own with `create_callbacks`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from transformer_jax.config import Criterion
from transformer_jax.errors import InputError
from transformer_jax.training.metrics import UNWEIGHTED, Sums, layer_norms, means
from transformer_jax.trees import Params

T = TypeVar("T")
Log = Callable[[int, Mapping[str, float]], None]  # takes a step and its scalars by name


class Step(NamedTuple):
    """A finished training step."""

    number: int  # steps done, including this one
    sums: Sums  # of its metrics
    per_second: float  # steps per second of the compiled call that ran this step
    # seconds that the host waited for the batch; the devices may have been busy meanwhile
    waited: float = 0.0
    ends_call: bool = True  # whether it is the last step of its call

    @property
    def metrics(self) -> dict[str, float]:
        """Mean of each metric over the step's batch, with `gradient_norm` and `learning_rate`."""
        return means([self.sums])


class Evaluation(NamedTuple):
    """An evaluation on the validation set."""

    step: int  # steps done
    epoch: int  # epochs done
    metrics: Mapping[str, float]  # mean of each metric
    params: Params  # the evaluated parameters


class Callback:
    """Base class of callbacks: the training loop calls these methods, which do nothing by default.

    Raises:
        InputError: a subclass is defined with a method for an unknown event, such as `on_epoch_end`.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        events = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in events:
                raise InputError(
                    f"{cls.__name__}.{name} is never called; the events are {', '.join(events)}"
                )

    def on_step(self, step: Step) -> None:
        """Called after each step, in order. The devices may already be running later steps."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Called after an evaluation on the validation set, before its checkpoint is saved."""

    def on_end(self, step: int) -> None:
        """Called after the last step and its evaluation, but not after an error or a signal; `step` steps are done."""

    @property
    def wants_to_stop(self) -> bool:
        """Whether training should end after the current evaluation."""
        return False

    def state(self) -> Any:  # JSON
        """State from which a resumed run continues; a copy is saved in each checkpoint."""
        return None

    def restore(self, state: Any) -> None:  # JSON
        """Continue from a state that `state` returned."""


def by_class(what: str, things: Sequence[T]) -> dict[str, T]:
    """Return the objects by class name, under which a checkpoint stores their states.

    Raises:
        InputError: two objects are of the same class.
    """
    names = [type(thing).__name__ for thing in things]
    if doubles := [name for name in names if names.count(name) > 1]:
        raise InputError(
            f"there are two {what} of class {doubles[0]}; checkpoints store one state per class"
        )
    return dict(zip(names, things, strict=True))


def check_finite(step: Step) -> None:
    """Stop training at the first step whose loss or gradient is not finite.

    Raises:
        FloatingPointError: the loss or the gradient of this step is not finite.
        InputError: all elements of its batch have the weight 0, so that the mean is undefined.
    """
    if step.sums["loss"][1] == 0:
        raise InputError(f"the batch of step {step.number} has the weight 0 in loss: {UNWEIGHTED}")
    for name in ("loss", "gradient_norm"):
        total, weight = step.sums[name]
        if not np.isfinite(value := np.divide(total, weight)):
            raise FloatingPointError(
                f"{name} is {value} at step {step.number}; training stops there"
            )


class LogMetrics(Callback):
    """Logs the training metrics every few steps, as means since the last entry, `train/…`.

    After each evaluation, logs `val/…`, and with `log_norms` the norm of each layer's parameters, such as
    `parameter_norm/encoder/layers_0`.

    Args:
        log: gets every entry.
        every: steps between entries.
        steps_per_epoch: number of steps in an epoch, which always ends with an entry.
        log_norms: whether the norms of the parameters are logged.
        num_steps: number of steps of the training, which always ends with an entry.
    """

    def __init__(
        self,
        log: Log,
        every: int,
        steps_per_epoch: int,
        *,
        log_norms: bool = False,
        num_steps: int | None = None,
    ) -> None:
        self._log, self._every, self._steps_per_epoch, self._log_norms = (
            log,
            every,
            steps_per_epoch,
            log_norms,
        )
        self._num_steps = num_steps
        self._window: list[Sums] = []  # of the steps since the last entry

    def on_step(self, step: Step) -> None:
        """Add one step, and log if an entry is due."""
        self._window.append(step.sums)
        is_last = step.number % self._steps_per_epoch == 0 or step.number == self._num_steps
        if step.number % self._every == 0 or is_last:
            metrics = means(self._window) | {
                # of this step, not the mean
                "learning_rate": float(np.asarray(step.sums["learning_rate"][0])),
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
        """Continue with these sums."""
        self._window = [
            {name: (total, weight) for name, (total, weight) in sums.items()} for sums in state
        ]


class EarlyStopping(Callback):
    """Stops training after a number of evaluations without improvement.

    Args:
        criterion: decides which evaluation is better; an equal value is no improvement.
        patience: number of evaluations; 0 disables early stopping.
    """

    def __init__(self, criterion: Criterion, patience: int) -> None:
        self._criterion, self._patience = criterion, patience
        self._best = float("nan")
        self._evaluations_since_best = 0

    @property
    def wants_to_stop(self) -> bool:
        """Whether the patience is exhausted."""
        return 0 < self._patience <= self._evaluations_since_best

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Compare an evaluation with the best one so far."""
        value = evaluation.metrics[self._criterion.metric]
        if self._criterion.is_better(value, self._best) and value != self._best:
            self._best, self._evaluations_since_best = value, 0
        else:
            self._evaluations_since_best += 1

    def state(self) -> dict[str, float]:
        """The best value (NaN before the first evaluation), and the number of evaluations since."""
        return {"best": self._best, "evaluations_since_best": self._evaluations_since_best}

    def restore(self, state: dict[str, float]) -> None:
        """Continue with this best value and number of evaluations."""
        self._best, self._evaluations_since_best = (
            state["best"],
            int(state["evaluations_since_best"]),
        )
