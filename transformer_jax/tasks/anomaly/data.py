"""Loaders of a run's sets of images, and the constants that they draw from."""

import dataclasses
from pathlib import Path

import numpy as np
from jaxtyping import Int

from transformer_jax.data.loader import Loader, make_loader
from transformer_jax.tasks.anomaly.cifar100 import has_cifar100
from transformer_jax.tasks.anomaly.config import AnomalyConfig, Cifar100Config, DigitsConfig
from transformer_jax.tasks.anomaly.sets import AnomalySets
from transformer_jax.tasks.anomaly.tables import FeatureTable
from transformer_jax.tasks.experiment import TaskData


def default_config(data_dir: Path = Path("data")) -> AnomalyConfig:
    """`Cifar100Config` if CIFAR-100 or its features lie under `data_dir`; else `DigitsConfig`, and a printed hint."""
    digits = DigitsConfig(data_dir=data_dir)  # checks the directory's name
    if has_cifar100(data_dir):
        return Cifar100Config(data_dir=data_dir)
    print(
        f"No CIFAR-100 under {data_dir}: using scikit-learn's handwritten digits. "
        "--dataset cifar100 downloads CIFAR-100 and the ResNet's weights."
    )
    return digits


@dataclasses.dataclass(frozen=True)
class AnomalyData(TaskData):
    """Sets of images: those of training are drawn anew in each epoch, the others are always the same."""

    train_eval_loader: Loader  # sets of the training images, always the same
    table: FeatureTable


def anomaly_data(config: AnomalyConfig) -> AnomalyData:
    """Sets of the images of `config.table()`, whose features are the constants, or come with each batch."""
    table = config.table()
    on_host = config.keeps_on_host(table)

    def sets(subset: Int[np.ndarray, " M"], seed: int, *, redraw: bool = False) -> AnomalySets:
        host_table = table.features if on_host else None
        return AnomalySets(
            table.labels, config.set_size, seed=seed, subset=subset, redraw=redraw, host_table=host_table
        )

    def fixed(subset: Int[np.ndarray, " M"], seed: int) -> Loader:
        return make_loader(sets(subset, seed), config.batch_size)

    train_loader = make_loader(
        sets(table.train, config.seed, redraw=True),
        config.batch_size,
        shuffle=True,
        drop_last=True,
        seed=config.seed,
        num_workers=config.num_workers,
    )
    return AnomalyData(
        train_loader,
        val_loader=fixed(table.val, seed=42),
        test_loader=fixed(table.test, seed=43),
        train_eval_loader=fixed(table.train, seed=41),
        table=table,
        constants=None if on_host else np.asarray(table.features),
    )
