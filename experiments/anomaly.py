"""Train a Transformer to find the odd one out: `python experiments/anomaly.py --help` explains the settings.

`--dataset digits` takes 15 seconds on two CPU cores and reaches about 99 % on test. `--dataset cifar100` should run on
a GPU, because it computes features with a ResNet. `--dataset files` reads features of your own, which may be larger
than memory. The default is the digits.
"""

if __name__ == "__main__":  # the imports below take seconds
    from transformer_jax.fit.signals import end_at_signals

    end_at_signals()

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from transformer_jax.cli import FileChoice, parse, parse_known, run
from transformer_jax.fields import type_hints
from transformer_jax.runs.settings import read_config_file
from transformer_jax.tasks.anomaly.task import (
    AnomalyConfig,
    Cifar100Config,
    DigitsConfig,
    FilesConfig,
    train_anomaly,
)

TASK = "SetAnomalyTask_"  # prefix of the tasks' names
CONFIGS: Mapping[Literal["cifar100", "digits", "files"], type[AnomalyConfig]] = {
    "cifar100": Cifar100Config,
    "digits": DigitsConfig,
    "files": FilesConfig,
}


@dataclasses.dataclass(frozen=True)
class DatasetChoice:
    """Source of the images; each data set has its own defaults and flags."""

    # images of the sets; files are --features and --labels
    dataset: Literal["cifar100", "digits", "files"] = "digits"


def read_config(arguments: list[str]) -> AnomalyConfig:
    """Return the config of the chosen data set; flags of other data sets are rejected."""
    file, _ = parse_known(FileChoice(), arguments)
    choice, others = parse_known(_choice_in(file.config), arguments)
    config_class = CONFIGS[choice.dataset]
    return parse(config_class, others, task=f"{TASK}{choice.dataset}", choices=DatasetChoice)


def _choice_in(path: Path | None) -> DatasetChoice:
    """Return the choice in a file of settings: by its keys or, if a run wrote it, by the run's task."""
    if path is None:
        return DatasetChoice()
    file = read_config_file(path)
    if not file.is_run:
        settings = {name for config in CONFIGS.values() for name in type_hints(config)}
        return DatasetChoice(**file.values(DatasetChoice, settings))
    for name in CONFIGS:
        if file.task == f"{TASK}{name}":
            return DatasetChoice(name)
    return DatasetChoice()


if __name__ == "__main__":
    run(read_config, train_anomaly)
