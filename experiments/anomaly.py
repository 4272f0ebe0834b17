"""Train a Transformer to find the odd one out: `python experiments/anomaly.py --help` explains the settings.

`--dataset digits` takes 15 seconds on two CPU cores and reaches about 99 % on test. `--dataset cifar100` wants a GPU
for the ResNet's features. Without `--dataset`, CIFAR-100 is taken where it lies under `--data-dir`, else the digits.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.training.signals import end_at_signals

    end_at_signals()

import dataclasses
import inspect
from pathlib import Path
from typing import Literal

from transformer_jax.cli import parse, parse_known, run
from transformer_jax.tasks.anomaly.task import (
    AnomalyConfig,
    Cifar100Config,
    DigitsConfig,
    default_config,
    train_anomaly,
)


@dataclasses.dataclass(frozen=True)
class DatasetChoice:
    """The images that the sets are made of; each data set has defaults and flags of its own."""

    dataset: Literal["auto", "cifar100", "digits"] = "auto"  # auto: cifar100 if it lies under data_dir, else digits
    data_dir: Path = Path("data")  # directory of CIFAR-100 and its features


def read_config(arguments: list[str]) -> AnomalyConfig:
    """The chosen data set's config; the other's flags are unknown to it."""
    choice, others = parse_known(DatasetChoice, arguments)
    if choice.dataset == "auto":
        default = default_config(choice.data_dir)
    else:
        default = {"cifar100": Cifar100Config, "digits": DigitsConfig}[choice.dataset](data_dir=choice.data_dir)
    description = f"{inspect.getdoc(type(default))}\n\nThese are the settings of --dataset {default.dataset}; there are"
    return parse(type(default), others, default=default, description=f"{description} auto, cifar100 and digits.")


if __name__ == "__main__":
    run(read_config, train_anomaly)
