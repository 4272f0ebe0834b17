"""The data sets of a task, and their loaders."""

import dataclasses
from typing import Any

from transformer_jax.config import TrainingConfig
from transformer_jax.data.loader import Dataset, Loader, make_loader
from transformer_jax.trees import Arrays


@dataclasses.dataclass(frozen=True)
class TaskData:
    """Data sets of a task. A task may add fields for its report."""

    train_loader: Loader
    val_loader: Loader
    test_loader: Loader
    # arrays that every step reads, see `TrainerModule`
    constants: Arrays = dataclasses.field(default=None, kw_only=True)


def task_loaders(
    config: TrainingConfig, train: Dataset, val: Dataset, test: Dataset, *, shuffle: bool = True
) -> tuple[Loader, Loader, Loader]:
    """Create the loaders of a task's three sets. The training loader leaves out an incomplete last batch.

    Args:
        config: the run's settings; its seed determines the order.
        train, val, test: the sets. If a set has `buckets`, they are the groups of samples that share batches; if it has
            `token_batches`, its batches are limited by tokens, and none is left out.
        shuffle: shuffle the training set in each epoch; False for a set that draws new samples in each epoch.
    """

    # arguments of `make_loader`
    def load(dataset: Dataset, *, drop_last: bool = False, **order: Any) -> Loader:
        by_tokens, groups = (
            getattr(dataset, "token_batches", None),
            getattr(dataset, "buckets", None),
        )
        drop_last = drop_last and by_tokens is None
        return make_loader(
            dataset, by_tokens or config.batch_size, drop_last=drop_last, groups=groups, **order
        )

    order = {"shuffle": shuffle, "seed": config.seed, "num_workers": config.num_workers}
    return load(train, drop_last=True, **order), load(val), load(test)
