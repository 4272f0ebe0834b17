"""Train the anomaly task on features from files, beside the tutorial's loop in PyTorch, epoch by epoch in turns.

python benchmarks/photographs.py --features features.npy --labels labels.npy    # ten minutes on two CPU cores

Both have the model, the settings and the kind of sets of `anomaly.py --dataset files`, and are tested on the same sets
after the last epoch. Our loop also evaluates after each epoch, and writes checkpoints and events.
"""

import contextlib
import dataclasses
import io
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import jax
import numpy as np
import torch
from torch.utils.data import Dataset

from harness import print_figures
from reference_tasks import AnomalyDataset, AnomalyTask
from reference_torch import ReferenceTorch
from transformer_jax import prepare_jax
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.tasks.anomaly.config import AnomalyData, FilesConfig, anomaly_data
from transformer_jax.tasks.anomaly.task import AnomalyTrainer


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotographsConfig:
    """Compare accuracy and time of the anomaly task with the tutorial's loop in PyTorch."""

    features: Path  # .npy file of the images' features, [images, features]
    labels: Path  # .npy file of the images' classes, all of one size, [images]
    max_epochs: int = setting(100, least=1)  # passes over the training set
    seed: int = setting(0, least=0)  # of both

    __post_init__ = set_checked_fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesTask(AnomalyTask):
    """The reference's settings and sets of given images."""

    table: np.ndarray  # [classes, images of a class, features]

    def dataset(self, seed: int) -> Dataset:
        return AnomalyDataset(self.table, self.set_size, seed)


def reference(config: FilesConfig, data: AnomalyData) -> ReferenceTorch:
    """The tutorial's loop with the same settings, on the images of the training set."""
    rows = data.table.train[np.argsort(data.table.labels[data.table.train], kind="stable")]
    num_classes = len(np.unique(data.table.labels))
    names = {
        "model_dim",
        "num_heads",
        "num_layers",
        "dropout_prob",
        "input_dropout_prob",
        "batch_size",
        "warmup",
        "lr",
    }
    settings = {name: getattr(config, name) for name in names} | {"epochs": config.max_epochs}
    table = data.table.features[rows].reshape(num_classes, -1, data.table.features.shape[1])
    task = FilesTask(**settings, set_size=config.set_size, input_dim=table.shape[-1], table=table)
    return ReferenceTorch(task, config.seed)


def accuracy_of(loop: ReferenceTorch, data: AnomalyData) -> float:
    """Share of the test sets in which the reference finds the anomaly."""
    sets, positions = data.test_loader.dataset.draw(0)
    with torch.inference_mode():
        logits = loop.model.eval()(torch.from_numpy(data.table.features[sets]).to(loop.device))[
            ..., 0
        ]
    return float(np.mean(logits.argmax(-1).cpu().numpy() == positions))


def measure(config: PhotographsConfig) -> dict[str, dict[str, float]]:
    """Train both, an epoch of each in turns; milliseconds per step and test accuracy by contestant."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        files = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        settings = FilesConfig(**files, checkpoint_dir=Path(directory))
        prepare_jax(settings)
        data = anomaly_data(settings)
        trainer, theirs = (
            AnomalyTrainer(settings, constants=data.constants),
            reference(settings, data),
        )
        with contextlib.redirect_stdout(io.StringIO()):
            ours = stack.enter_context(trainer.training(data.train_loader, data.val_loader))
        steps = len(theirs.train_loader)
        milliseconds: dict[str, list[float]] = {"ours": [], "PyTorch": []}
        for epoch in range(settings.max_epochs):
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                ours.train_until((epoch + 1) * steps)
            milliseconds["ours"].append(1000 * (time.perf_counter() - start) / steps)
            milliseconds["PyTorch"].append(theirs.run(steps))
        accuracy = trainer.evaluate(data.test_loader, jax.device_get(ours.state.params))["accuracy"]
    return {
        "milliseconds of a step": {name: median(times) for name, times in milliseconds.items()},
        "test accuracy": {"ours": accuracy, "PyTorch": accuracy_of(theirs, data)},
    }


if __name__ == "__main__":
    run(partial(parse, PhotographsConfig), lambda config: print_figures(measure(config)))
