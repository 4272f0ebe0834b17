"""What every training run is configured by. Tasks extend it, and the command line is made from it."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from transformer_jax.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Settings of the training itself.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    max_epochs: int = 10  # passes over the training set
    batch_size: int = 128  # samples in one step
    lr: float = 5e-4  # peak learning rate
    warmup: int = 50  # steps in which the learning rate rises from 0 to its peak
    gradient_clip: float = 1.0  # largest global norm of the gradient
    seed: int = 42  # of the parameters, the dropout and the order of the training set
    eval_every: int = 5  # epochs between evaluations; the last epoch is always followed by one
    log_every: int = 50  # steps between TensorBoard entries; an epoch always ends in one
    num_workers: int = 0  # processes that load data, 0 loads in the main one
    checkpoint_dir: Path = Path("checkpoints")  # parent of the run's directory

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_epochs", "batch_size", "eval_every", "log_every")
        check_at_least(self, 0, "warmup", "num_workers", "seed")
        check_positive(self, "lr", "gradient_clip")


def check_at_least(config: Any, minimum: int, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is below `minimum`."""
    for name in names:
        if getattr(config, name) < minimum:
            raise InputError(f"{name} is {getattr(config, name)}; it must be at least {minimum}")


def check_positive(config: Any, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is not a finite number above 0."""
    for name in names:
        if not (math.isfinite(getattr(config, name)) and getattr(config, name) > 0):
            raise InputError(f"{name} is {getattr(config, name)}; it must be a finite number above 0")


def check_probability(config: Any, *names: str) -> None:
    """Raise an `InputError` for the first of these fields whose value is outside [0, 1)."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}; it must be at least 0 and below 1")
