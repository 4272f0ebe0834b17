"""The data sets of a task, and their loaders."""

import dataclasses
from typing import Any

from transformer_jax.argument_checks import check_fields
from transformer_jax.config import TrainingConfig
from transformer_jax.data.loader import Dataset, GivenLoader, Loader, make_loader
from transformer_jax.devices.processes import quietly, say
from transformer_jax.errors import InputError
from transformer_jax.trees import Arrays


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Data sets of a task. A task may add fields for its report."""

    train_loader: GivenLoader
    val_loader: GivenLoader
    test_loader: GivenLoader
    # arrays that every step reads, see `TrainerModule`
    constants: Arrays = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self)


def task_loaders(
    config: TrainingConfig, train: Dataset, val: Dataset, test: Dataset, *, shuffle: bool = True
) -> tuple[Loader, Loader, Loader]:
    """Create the loaders of a task's three sets. The training loader leaves out an incomplete last batch.

    If the training set is smaller than a batch of the default size, it is the only batch.

    Args:
        config: the run's settings; its seed determines the order.
        train, val, test: the sets. If a set has `buckets`, they are the groups of samples that share batches; if it has
            `token_batches`, its batches are limited by tokens, and none is left out.
        shuffle: shuffle the training set in each epoch; False for a set that draws new samples in each epoch.
    """
    order = {"shuffle": shuffle, "seed": config.seed, "num_workers": config.num_workers}
    # batches by tokens, which differ in their number of pairs, leave none out
    drop_last = getattr(train, "token_batches", None) is None
    is_default = config.batch_size == type(config).batch_size
    if drop_last and is_default and len(train) < config.batch_size:
        drop_last = False
        with quietly(config):
            say(
                f"Batches of all {len(train)} training samples, as the default batch_size,"
                f" {config.batch_size}, is larger"
            )
    return (
        _loader(config, train, drop_last=drop_last, **order),
        _loader(config, val),
        _loader(config, test),
    )


def _loader(config: TrainingConfig, dataset: Dataset, **options: Any) -> Loader:
    """Create the loader of a set, with options of `make_loader`."""
    batch_size = getattr(dataset, "token_batches", None) or config.batch_size
    groups = getattr(dataset, "buckets", None)
    return make_loader(dataset, batch_size, groups=groups, **options)


def check_same_settings(
    config: TrainingConfig, trained: TrainingConfig, what: str, *names: str
) -> None:
    """Raise an `InputError` unless settings have the values with which a model was trained; `what` names the model."""
    for name in names:
        value = getattr(config, name)
        expected = getattr(trained, name)
        if value != expected:
            raise InputError(
                f"{name} is {value}; it must be {expected}, as in the training of {what}"
            )
