"""Train the anomaly task on features of photographs, beside the tutorials' loops, epoch by epoch in turns.

python benchmarks/photographs.py --features features.npy --labels labels.npy    # 15 minutes on two CPU cores
python benchmarks/photographs.py --images DIR --features-by FILE.py:FUNCTION    # CIFAR-100

All have the model, the settings and the kind of sets of `anomaly.py`, and are tested on the same sets after the last
epoch. Our loop also evaluates after each epoch, and writes checkpoints and events. Beside them stands what the features
give without a Transformer: how often the image least similar to the others is the odd one, and how many test images a
linear classifier assigns to their class.
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
from reference_jax import ReferenceJax
from reference_loop import ReferenceLoop
from reference_tasks import AnomalyDataset, AnomalyTask
from reference_torch import ReferenceTorch
from transformer_jax import prepare_jax
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.tasks.anomaly.config import (
    AnomalyConfig,
    AnomalyData,
    Cifar100Config,
    FilesConfig,
    anomaly_data,
)
from transformer_jax.tasks.anomaly.tables import FeatureTable
from transformer_jax.tasks.anomaly.task import AnomalyTrainer

LOOPS = {"tutorial in JAX": ReferenceJax, "tutorial in PyTorch": ReferenceTorch}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhotographsConfig:
    """Compare accuracy and time of the anomaly task with the tutorials' loops; CIFAR-100 without files of features."""

    features: Path | None = None  # .npy file of the images' features, [images, features]
    labels: Path | None = None  # .npy file of the images' classes, all of one size, [images]
    data_dir: Path = Path("data")  # directory of CIFAR-100's archive or features
    images: Path | None = None  # directory with CIFAR-100's train/CLASS/*.png and test/CLASS/*.png
    features_by: str = "resnet34"  # network of CIFAR-100's features, see anomaly.py
    max_epochs: int = setting(100, least=1)  # passes over the training set
    seed: int = setting(0, least=0)  # of all

    __post_init__ = set_checked_fields

    def task(self, checkpoint_dir: Path) -> AnomalyConfig:
        """The settings of our training."""
        names = ["data_dir", "images", "features_by"]
        config_class: type[AnomalyConfig] = Cifar100Config
        if self.features is not None:
            names = ["features", "labels"]
            config_class = FilesConfig
        shared = {name: getattr(self, name) for name in [*names, "max_epochs", "seed"]}
        return config_class(**shared, checkpoint_dir=checkpoint_dir)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableTask(AnomalyTask):
    """The references' settings and sets of given images."""

    table: np.ndarray  # [classes, images of a class, features]

    def dataset(self, seed: int) -> Dataset:
        return AnomalyDataset(self.table, self.set_size, seed)


def reference_task(config: AnomalyConfig, data: AnomalyData) -> TableTask:
    """The same settings for the tutorials' loops, and the images of the training set."""
    rows = data.table.train[np.argsort(data.table.labels[data.table.train], kind="stable")]
    num_classes = len(np.unique(data.table.labels))
    sizes = ["model_dim", "num_heads", "num_layers", "batch_size", "set_size"]
    names = [*sizes, "dropout_prob", "input_dropout_prob", "warmup", "lr"]
    settings = {name: getattr(config, name) for name in names} | {"epochs": config.max_epochs}
    table = data.table.features[rows].reshape(num_classes, -1, data.table.features.shape[1])
    return TableTask(**settings, input_dim=table.shape[-1], table=table)


def accuracy_of(loop: ReferenceLoop, data: AnomalyData) -> float:
    """Share of the test sets in which a reference finds the anomaly."""
    sets, positions = data.test_loader.dataset.draw(0)
    predictions: list[np.ndarray] = []
    for part in np.array_split(sets, max(1, len(sets) // 1000)):
        predictions.append(logits_of(loop, data.table.features[part])[..., 0].argmax(-1))
    return float(np.mean(np.concatenate(predictions) == positions))


def logits_of(loop: ReferenceLoop, features: np.ndarray) -> np.ndarray:
    """Logits `[B, T, 1]` of a reference for the features of sets `[B, T, F]`, without dropout."""
    if isinstance(loop, ReferenceJax):
        return np.asarray(loop.model.apply({"params": loop.state.params}, features, train=False))
    with torch.inference_mode():
        return loop.model.eval()(torch.from_numpy(features).to(loop.device)).cpu().numpy()


def least_similar(data: AnomalyData) -> float:
    """Share of the test sets whose odd image has the smallest mean cosine to the others."""
    sets, positions = data.test_loader.dataset.draw(0)
    features = np.asarray(data.table.features)
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    members = directions[sets]  # [N S F]
    # An image's own cosine is the same for all, so that it may stay in the mean.
    similarity = np.einsum("nsf,nf->ns", members, members.sum(1))
    return float(np.mean(similarity.argmin(1) == positions))


def linear_classifier(table: FeatureTable) -> float:
    """Share of the test images to which a logistic regression on the features gives their class."""
    from sklearn.linear_model import LogisticRegression

    features = np.asarray(table.features)
    spread = features[table.train].std()
    classifier = LogisticRegression(C=0.01, max_iter=300)
    classifier.fit(features[table.train] / spread, table.labels[table.train])
    return float(classifier.score(features[table.test] / spread, table.labels[table.test]))


def measure(config: PhotographsConfig) -> dict[str, dict[str, float]]:
    """Train all, an epoch of each in turns; milliseconds per step and test accuracy by contestant."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        settings = config.task(Path(directory))
        prepare_jax(settings)
        data = anomaly_data(settings)
        trainer = AnomalyTrainer(settings, constants=data.constants)
        task = reference_task(settings, data)
        theirs = {name: loop(task, settings.seed) for name, loop in LOOPS.items()}
        with contextlib.redirect_stdout(io.StringIO()):
            ours = stack.enter_context(trainer.training(data.train_loader, data.val_loader))
        steps = len(data.train_loader)
        milliseconds: dict[str, list[float]] = {name: [] for name in ("ours", *theirs)}
        for epoch in range(settings.max_epochs):
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                ours.train_until((epoch + 1) * steps)
            milliseconds["ours"].append(1000 * (time.perf_counter() - start) / steps)
            for name, loop in theirs.items():
                milliseconds[name].append(loop.run(steps))
        params = jax.device_get(ours.state.params)
        accuracy = trainer.evaluate(data.test_loader, params)["accuracy"]
    return {
        "milliseconds of a step": {name: median(times) for name, times in milliseconds.items()},
        "test accuracy": {
            "ours": accuracy,
            **{name: accuracy_of(loop, data) for name, loop in theirs.items()},
            "the least similar image": least_similar(data),
        },
        "classes": {"linear classifier": linear_classifier(data.table)},
    }


if __name__ == "__main__":
    run(partial(parse, PhotographsConfig), lambda config: print_figures(measure(config)))
