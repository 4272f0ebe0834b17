"""The data sets of a task, and their loaders."""

import dataclasses
from typing import Any

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
        train, val, test: the sets; where one has `buckets`, these are the groups of samples that share batches, and
            where it has `token_batches`, its batches have a number of tokens, and none is left out.
        shuffle: a new order of the training set in each epoch; False for one that draws anew.
    """

    def load(dataset: Dataset, *, drop_last: bool = False, **order: Any) -> Loader:  # arguments of `make_loader`
        by_tokens, groups = getattr(dataset, "token_batches", None), getattr(dataset, "buckets", None)
        drop_last = drop_last and by_tokens is None
        return make_loader(dataset, by_tokens or config.batch_size, drop_last=drop_last, groups=groups, **order)

    order = {"shuffle": shuffle, "seed": config.seed, "num_workers": config.num_workers}
    return load(train, drop_last=True, **order), load(val), load(test)
