"""How long the loader of the anomaly task takes for an epoch at CIFAR-100's size, beside the epoch's training steps.

`python benchmarks/loading.py` takes about half a minute on two CPU cores.
"""

import atexit
import dataclasses
import functools
import statistics
import tempfile
import time
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from transformer_jax.cli import parse, run
from transformer_jax.data.batch import pad_batch
from transformer_jax.data.loader import make_loader
from transformer_jax.tasks.anomaly.feature_files import map_array
from transformer_jax.tasks.anomaly.sets import AnomalySets, SetsOfRows
from transformer_jax.tasks.anomaly.task import AnomalyTrainer, Cifar100Config


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measure loading against computing."""

    epochs: int = 3  # that are loaded
    steps: int = 60  # that are computed
    num_workers: int = 0  # processes that load data
    features_on: Literal["device", "host"] = "device"  # where the table lies; host: a mapped file


def mapped(features: np.ndarray) -> np.ndarray:
    """The features in a file that is removed at the end."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    path = Path(directory.name) / "features.npy"
    np.save(path, features)
    return map_array(path)


def measure(settings: Settings) -> None:
    """Print both times and their ratio."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(100), 450))
    features = rng.normal(size=(len(labels), 512)).astype(np.float32)
    config = Cifar100Config()
    on_host = settings.features_on == "host"
    sets = AnomalySets(labels, config.set_size, seed=0, redraw=True)
    dataset = SetsOfRows(sets, mapped(features)) if on_host else sets
    loader = make_loader(dataset, config.batch_size, shuffle=True, drop_last=True, num_workers=settings.num_workers)
    loading = []
    for epoch in range(settings.epochs):
        start = time.perf_counter()
        batches = sum(1 for _ in loader.epoch(epoch))
        loading.append(time.perf_counter() - start)

    trainer = AnomalyTrainer(config, constants=None if on_host else features)
    batch = pad_batch(next(iter(loader)), config.batch_size)
    num_steps = batches * config.max_epochs
    state = trainer.initial_state(loader.example(), num_steps)
    options = {"loss_function": trainer.batch_loss, "rule": trainer.update_rule(num_steps)}
    step = jax.jit(functools.partial(trainer.train_step, **options), donate_argnums=0)
    times = []
    for _ in range(settings.steps):
        start = time.perf_counter()
        state, _ = jax.block_until_ready(step(state, batch, trainer.constants))
        times.append(time.perf_counter() - start)
    computing = batches * statistics.median(times)
    median = statistics.median(loading)
    print(f"loading an epoch:   {median:.2f} s for {batches} batches")
    print(f"computing an epoch: {computing:.2f} s, {1000 * statistics.median(times):.1f} ms per step")
    print(f"ratio:              {median / computing:.3f}")


if __name__ == "__main__":
    run(functools.partial(parse, Settings), measure)
