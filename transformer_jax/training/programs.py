"""What is compiled for a training, which another one uses again where only the seed differs."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config import TrainingConfig
from transformer_jax.training.runner import StepRunner
from transformer_jax.training.step import TrainState, UpdateRule


class Programs(NamedTuple):
    """What is compiled for a training; it depends on neither the seed nor the run's directory."""

    rule: UpdateRule
    shapes: TrainState  # and types
    initial_state: Callable[..., TrainState]  # of seed, inputs and constants
    runner: StepRunner


def without_seed(config: TrainingConfig) -> TrainingConfig:
    """The settings without those by which runs of the same programs may differ: seed, directory, criterion."""
    return dataclasses.replace(config, seed=0, name=None, checkpoint_dir=Path(), best_by=None)
