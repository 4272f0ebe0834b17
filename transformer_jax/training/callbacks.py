"""Training callbacks, called between steps. A task adds its own with `create_callbacks`."""

from collections.abc import Callable
from typing import Any, NamedTuple

from transformer_jax.errors import InputError, check_method
from transformer_jax.training.metrics import Means, Sums, means
from transformer_jax.trees import Params

Log = Callable[[int, Means], None]  # takes a step and its scalars by name


class Step(NamedTuple):
    """A finished training step."""

    number: int  # steps done, including this one
    sums: Sums  # of its metrics
    seconds: float  # duration of its compiled call, divided by the steps of that call
    # seconds that the host waited for the batch; the devices may have been busy meanwhile
    waited: float = 0.0
    ends_call: bool = True  # whether it is the last step of its call
    epoch: int = 1  # to which the step belongs, from 1

    @property
    def metrics(self) -> Means:
        """Mean of each metric over the step's batch, with `gradient_norm` and `learning_rate`."""
        return means([self.sums])


class Evaluation(NamedTuple):
    """An evaluation on the validation set."""

    step: int  # steps done
    epoch: int  # number, from 1, of the epoch to which that step belongs
    metrics: Means  # mean of each metric
    params: Params  # the evaluated parameters


class Epoch(NamedTuple):
    """A finished epoch."""

    number: int  # from 1
    metrics: Means  # mean of each training metric over the epoch
    evaluation: Evaluation | None  # after it, if there was one


class Callback:
    """Base class of callbacks: the training loop calls these methods, which do nothing by default.

    Raises:
        InputError: a subclass is defined with a method for an unknown event, such as `on_epoch_end`, or that lacks an
            argument; or with a `wants_to_stop` that is no property.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        events = [name for name in vars(Callback) if name.startswith("on_")]
        for name in vars(cls):
            if name.startswith("on_") and name not in events:
                raise InputError(
                    f"{cls.__name__}.{name} is never called; the events are {', '.join(events)}"
                )
            if name in vars(Callback):
                check_method(cls, name, Callback)
        if callable(cls.wants_to_stop):
            raise InputError(f"{cls.__name__}.wants_to_stop is a method; it must be a property")

    def on_step(self, step: Step) -> None:
        """Called after each step, in order. The devices may already be running later steps."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Called after an evaluation on the validation set, before its checkpoint is saved."""

    def on_epoch(self, epoch: Epoch) -> None:
        """Called after the last step of an epoch, and after its evaluation if there is one."""

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
