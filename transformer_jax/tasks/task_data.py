"""The data sets of a task, and their loaders."""

import dataclasses
import functools

from transformer_jax.config import TrainingConfig
from transformer_jax.data.loader import Dataset, Loader, make_loader
from transformer_jax.trees import Arrays


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Data sets of a task. A task may add fields of its own, for its report."""

    train_loader: Loader
    val_loader: Loader
    test_loader: Loader
    # arrays that every step reads, see `TrainerModule`
    constants: Arrays = dataclasses.field(default=None, kw_only=True)


def task_loaders(
    config: TrainingConfig, train: Dataset, val: Dataset, test: Dataset, *, shuffle: bool = True
) -> tuple[Loader, Loader, Loader]:
    """Loaders of a task's three sets. That of the training leaves out a last batch that is shorter.

    Args:
        config: the run's settings; its seed is that of the order.
        train, val, test: the sets; where one has `buckets`, these are the groups of samples that share batches.
        shuffle: a new order of the training set in each epoch; False for one that draws anew.
    """
    load = functools.partial(make_loader, batch_size=config.batch_size)
    load_train = functools.partial(load, drop_last=True, seed=config.seed, num_workers=config.num_workers)
    groups = [getattr(dataset, "buckets", None) for dataset in (train, val, test)]
    train_loader = load_train(train, shuffle=shuffle, groups=groups[0])
    return train_loader, load(val, groups=groups[1]), load(test, groups=groups[2])
