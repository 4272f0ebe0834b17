"""Checks of a task before its training begins."""

from collections.abc import Collection

from transformer_jax.config import Criterion
from transformer_jax.data.loader import Loader
from transformer_jax.errors import InputError

LOGGED_BY_TRAINING = frozenset({"gradient_norm", "learning_rate", "steps_per_second"})  # beside the task's metrics


def check_loaders(**loaders: Loader) -> None:
    """Raise an `InputError` for a loader of another kind, PyTorch's for example: its order is no function of epochs."""
    for name, loader in loaders.items():
        if not isinstance(loader, Loader):
            raise InputError(f"{name} is a {type(loader).__name__}; it must be a Loader, from make_loader")


def check_metrics(names: Collection[str], criterion: Criterion) -> None:
    """Check the names of the metrics that a loss function gives in an evaluation.

    Raises:
        InputError: there is no loss, or no metric by which the best model is chosen, or a name is taken.
    """
    given = f"the loss function gives {', '.join(sorted(names)) or 'nothing'}"
    if "loss" not in names:
        raise InputError(f"{given}; it must give loss, which is minimised")
    if criterion.metric not in names:
        raise InputError(f"{given}; it must give {criterion.metric}, since the best model is chosen by {criterion}")
    if taken := sorted(LOGGED_BY_TRAINING.intersection(names)):
        raise InputError(f"{given}; {', '.join(taken)} must have another name, since training logs its own")
