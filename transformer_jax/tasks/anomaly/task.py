"""Task: find the odd one out in a set of images.

The model is permutation-equivariant, without positions, and the softmax is over the set, not over classes.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import flax.linen as nn
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.config import TrainingConfig, check_at_least
from transformer_jax.data.loader import Loader, make_loader
from transformer_jax.errors import check_probability
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.tasks.anomaly.features import has_cifar100
from transformer_jax.tasks.anomaly.report import permutation_error, predict_sets, print_mistakes, save_pictures
from transformer_jax.tasks.anomaly.sets import AnomalySets
from transformer_jax.tasks.anomaly.tables import FeatureTable, cifar100_table, digits_table
from transformer_jax.trained.pretrained import find_trained, fit_or_adopt
from transformer_jax.training.metrics import Elements
from transformer_jax.training.trainer import TrainerModule


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnomalyConfig(TrainingConfig):
    """Train a Transformer to find the image that is of another class than the rest of its set.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    dataset: ClassVar[str]  # whose images make the sets
    batch_size: int = 64  # sets in one step
    warmup: int = 100  # steps in which the learning rate rises from 0 to its peak
    set_size: int = 10  # images in a set, the odd one among them
    model_dim: int = 64  # width of the model
    num_heads: int = 4  # attention heads, a divisor of the width
    num_layers: int = 2  # encoder blocks
    dropout_prob: float = 0.1  # inside the encoder and the output network
    input_dropout_prob: float = 0.1  # of the image features
    data_dir: Path = Path("data")  # where CIFAR-100 and its features lie, or are put

    NEUTRAL: ClassVar[frozenset[str]] = TrainingConfig.NEUTRAL | {"data_dir"}
    MODEL: ClassVar[frozenset[str]] = TrainingConfig.MODEL | {"input_dropout_prob"}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, 2, "set_size")
        check_probability("input_dropout_prob", self.input_dropout_prob)

    def table(self) -> FeatureTable:
        """Every image's features, and its split."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsConfig(AnomalyConfig):
    """Handwritten digits, 8×8 pixels: scikit-learn brings them along. Reaches about 99 % on test in 15 seconds."""

    dataset: ClassVar[str] = "digits"
    max_epochs: int = 60  # passes over the training set
    lr: float = 1e-3  # peak learning rate of the cosine schedule

    def table(self) -> FeatureTable:
        return digits_table()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar100Config(AnomalyConfig):
    """CIFAR-100 through an ImageNet ResNet-34. The tutorial's settings, with which it published 94.66 % on test."""

    dataset: ClassVar[str] = "cifar100"
    max_epochs: int = 100  # passes over the training set
    model_dim: int = 256  # width of the model
    num_layers: int = 4  # encoder blocks
    features_dir: Path | None = None  # where the tutorial's feature files lie, to use them instead
    resolution: int = 224  # pixels to which images are enlarged for the ResNet

    def table(self) -> FeatureTable:
        return cifar100_table(self.data_dir, self.features_dir, self.resolution)


class AnomalyTrainer(TrainerModule):
    """Trains a `TransformerPredictor` without positions to score each image of a set.

    Batches are indices `[B, S]` and positions `[B]`; the feature table `[N, F]` is the trainer's `constants`.
    """

    config: AnomalyConfig

    @classmethod
    def config_class_of(cls, name: str) -> type[AnomalyConfig]:
        return Cifar100Config if name.endswith("cifar100") else DigitsConfig

    @property
    def name(self) -> str:
        return f"SetAnomalyTask_{self.config.dataset}"

    def create_model(self) -> TransformerPredictor:
        config = self.config
        return TransformerPredictor(
            model_dim=config.model_dim,
            num_classes=1,
            num_heads=config.num_heads,
            num_layers=config.num_layers,
            dropout_prob=config.dropout_prob,
            input_dropout_prob=config.input_dropout_prob,
        )

    def prepare(self, data: Any, constants: Float[Array, "N F"]) -> tuple[Float[Array, "B S F"], Int[ArrayLike, " B"]]:
        indices, positions = data
        return constants[indices], positions

    def model_inputs(self, data: Any) -> tuple[Float[Array, "B S F"], None, bool]:
        features, _ = data
        return features, None, False  # no mask, no positions

    def loss_function(self, params: Any, data: Any, key: Array | None, *, train: bool) -> Elements:
        _, positions = data
        logits = self.apply(params, data, key, train=train).squeeze(-1)  # [B S]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, positions)  # [B]
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == positions, 1.0)}

    def predict(self, inputs: Float[ArrayLike, "B S F"]) -> Float[np.ndarray, "B S"]:
        """The probability of each image of each set being the odd one out, from the images' features."""
        features = np.asarray(inputs)
        indices = np.arange(features.shape[0] * features.shape[1]).reshape(features.shape[:2])
        table = features.reshape(-1, features.shape[-1])  # every set of its own
        nowhere = np.zeros(len(features), np.int32)  # the anomalies' positions, which a prediction does not read
        logits = self._forward(self.params, (indices, nowhere), table, return_attention=False)
        return np.asarray(nn.softmax(logits[..., 0]))


def default_config(data_dir: Path = Path("data")) -> AnomalyConfig:
    """CIFAR-100 where its features or images already lie under `data_dir`, otherwise the digits, and a line on it."""
    if has_cifar100(data_dir):
        return Cifar100Config(data_dir=data_dir)
    print(
        f"No CIFAR-100 under {data_dir}: using scikit-learn's handwritten digits. "
        "--dataset cifar100 downloads CIFAR-100 and the ResNet's weights."
    )
    return DigitsConfig(data_dir=data_dir)


def anomaly_loaders(config: AnomalyConfig, table: FeatureTable) -> dict[str, Loader]:
    """Loaders of sets: `train` draws anew each epoch, `train_eval`, `val` and `test` always give the same."""
    train = AnomalySets(table.labels, config.set_size, seed=config.seed, subset=table.train, redraw=True)
    fixed = {"train_eval": (table.train, 41), "val": (table.val, 42), "test": (table.test, 43)}
    loaders = {
        name: make_loader(AnomalySets(table.labels, config.set_size, seed=seed, subset=subset), config.batch_size)
        for name, (subset, seed) in fixed.items()
    }
    loaders["train"] = make_loader(
        train, config.batch_size, shuffle=True, drop_last=True, seed=config.seed, num_workers=config.num_workers
    )
    return loaders


def train_anomaly(config: AnomalyConfig | None = None, **settings: Any) -> tuple[AnomalyTrainer, dict[str, Any]]:
    """Train and test; leave a run directory with checkpoint, results and pictures.

    `train_anomaly(Cifar100Config())` is the tutorial's experiment.

    With `pretrained` nothing is trained: that model is tested, in a directory of its own.

    Args:
        config: `DigitsConfig` or `Cifar100Config`; None takes the latter if its data are at hand.
        **settings: fields of the config to replace.

    Returns:
        The trainer, with the best parameters in `trainer.params`, and what `results.json` holds.
    """
    config = dataclasses.replace(config or default_config(), **settings)
    config, trained = find_trained(AnomalyTrainer, config)
    table = config.table()
    loaders = anomaly_loaders(config, table)
    trainer = AnomalyTrainer(config, constants=table.features)
    fit_or_adopt(trainer, trained, loaders["train"], loaders["val"])

    predictions = predict_sets(trainer, loaders["test"])
    error = permutation_error(trainer, next(iter(loaders["test"])))
    train_acc = trainer.evaluate(loaders["train_eval"])["accuracy"]
    print(f"Train accuracy: {train_acc:.2%}")
    results = trainer.test(
        loaders["val"],
        loaders["test"],
        train_acc=train_acc,
        dataset=config.dataset,
        permutation_error=error,
        num_mistakes=len(predictions.mistakes),
    )
    print(f"Permuting the sets of a test batch changes a logit by at most {error:.1e}")
    print_mistakes(predictions, table.labels)
    save_pictures(trainer, table, predictions)
    return trainer, results
