"""Loaders of a run's pairs of texts."""

import dataclasses

from transformer_jax.data.loader import make_loader
from transformer_jax.errors import InputError
from transformer_jax.tasks.experiment import TaskData
from transformer_jax.tasks.translation.config import TranslationConfig
from transformer_jax.tasks.translation.padded_pairs import PairSplits
from transformer_jax.tasks.translation.pair_files import summary
from transformer_jax.training.progress import quietly


@dataclasses.dataclass(frozen=True)
class TranslationData(TaskData):
    """Pairs of texts, in batches of at most four shapes."""

    splits: PairSplits


def translation_data(config: TranslationConfig) -> TranslationData:
    """Dates, or pairs from a file."""
    splits = config.splits()
    if config.data is not None:
        with quietly(config):
            print(summary(splits))
    if config.batch_size > len(splits.train):
        raise InputError(
            f"batch_size is {config.batch_size}; it may be at most {len(splits.train)}, the number of pairs for "
            f"training: --batch-size {len(splits.train)}"
        )
    train_loader = make_loader(
        splits.train,
        config.batch_size,
        shuffle=True,
        drop_last=True,
        seed=config.seed,
        num_workers=config.num_workers,
        groups=splits.train.buckets,
    )
    val_loader, test_loader = (
        make_loader(split, config.batch_size, groups=split.buckets) for split in (splits.val, splits.test)
    )
    return TranslationData(train_loader, val_loader, test_loader, splits)
