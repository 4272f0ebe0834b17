"""A tiny reverse training for tests of the trainer: 15 steps, 5 per epoch, evaluated after 10 and 15."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax import ReverseConfig, make_loader
from transformer_jax.data.loader import Loader
from transformer_jax.tasks import ReverseDataset, ReverseTrainer

CONFIG = ReverseConfig(
    max_epochs=3, batch_size=7, seq_len=5, num_categories=3, model_dim=6, warmup=2, eval_every=2, log_every=2
)
STEPS = 15


def loader(size: int, seed: int = 1, **options: Any) -> Loader:
    """Loader of a number of sequences in batches of 7."""
    return make_loader(ReverseDataset(3, 5, size, seed), CONFIG.batch_size, **options)


def loaders() -> tuple[Loader, Loader]:
    """Loaders for training, which drops its last two sequences, and validation, whose last batch is short."""
    return loader(37, drop_last=True), loader(23)


def trainer_for(directory: Path, trainer_class: Any = ReverseTrainer, **settings: Any) -> Any:
    """Trainer with its runs in this directory."""
    return trainer_class(dataclasses.replace(CONFIG, checkpoint_dir=directory, **settings))


def fit(trainer: Any) -> Any:
    """Train, and return the trainer."""
    trainer.fit(*loaders())
    return trainer


def assert_near(found: Any, expected: Any) -> None:
    """Assert equality up to rounding, except for key biases: their gradient is only rounding, which Adam amplifies."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for (path, array), other in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not name.endswith("key_proj/bias"):
            np.testing.assert_allclose(array, other, rtol=0, atol=1e-6, err_msg=name)
