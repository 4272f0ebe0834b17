"""The best checkpoint of a run, and the policy that keeps it beside the newest ones."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

from transformer_jax.config import Criterion

NEWEST = 2  # checkpoints that are kept beside the best


def best_step(values: Mapping[int, float], criterion: Criterion) -> int | None:
    """The step of the best value, of equal ones the later; None if all are NaN.

    Args:
        values: the criterion's metric by step, NaN where a checkpoint was not evaluated.
        criterion: which of two values is better.
    """
    best, best_value = None, math.nan
    for step in sorted(values):
        if criterion.is_better(values[step], best_value):
            best, best_value = step, values[step]
    return best


@runtime_checkable
class SavedStep(Protocol):
    """The part of Orbax's `PolicyCheckpointInfo` that is needed here."""

    step: int


class NewestAndBest:
    """Orbax's protocol `PreservationPolicy`: keep the newest `NEWEST` checkpoints and the best one.

    Orbax's own `BestN` either ranks or keeps for ever the checkpoints that were not evaluated.

    Args:
        read_values: the criterion's metric at each of these steps, NaN where a checkpoint was not evaluated.
        criterion: which of two values is better.
    """

    def __init__(self, read_values: Callable[[Sequence[int]], Mapping[int, float]], criterion: Criterion) -> None:
        self.read_values = read_values
        self.criterion = criterion

    def should_preserve(self, checkpoints: Sequence[SavedStep], *, context: object) -> list[bool]:
        """Whether to keep each of these checkpoints; Orbax's context says nothing."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        kept = {*sorted(steps)[-NEWEST:], best_step(self.read_values(steps), self.criterion)}
        return [step in kept for step in steps]
