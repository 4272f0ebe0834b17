"""Settings of the anomaly task, for each of its data sets, and the loaders of its sets of images."""

import dataclasses
import functools
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Float, Num

from transformer_jax.config import TrainingConfig
from transformer_jax.data.loader import Loader, make_loader
from transformer_jax.errors import InputError, check_probability
from transformer_jax.fields import setting
from transformer_jax.setting_groups import Positions
from transformer_jax.tasks.anomaly.cifar100 import (
    FILE_NAMES,
    RESNET34,
    cache_of,
    check_features_by,
    cifar100_table,
    network_of,
)
from transformer_jax.tasks.anomaly.network_features import features_by
from transformer_jax.tasks.anomaly.sets import AnomalySets
from transformer_jax.tasks.anomaly.tables import (
    FeatureTable,
    digits_features,
    digits_table,
    files_table,
)
from transformer_jax.tasks.task_data import TaskData, task_loaders

MAX_RESOLUTION = 4096  # pixels, at which the ResNet's first activation of 64 images takes 64 GiB
MAX_TABLE_BYTES = 2**30  # largest table of features that `features_on="auto"` puts on the devices


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnomalyConfig(TrainingConfig):
    """Train a Transformer to find the image whose class differs from the rest of its set.

    Raises:
        InputError: at construction, for a value that cannot work.
    """

    dataset: ClassVar[str]  # name of the data set of images
    image_shape: ClassVar[tuple[int, ...]]  # of one image
    batch_size: int = 64  # sets per step
    warmup: int = 100  # warm-up steps, over which the learning rate rises from 0 to its peak
    # number of images in a set, including the odd one
    set_size: int = setting(10, least=2, most=4096)
    model_dim: int = 64  # width of the model
    num_heads: int = 4  # number of attention heads; it must divide model_dim
    num_layers: int = 2  # encoder blocks
    dropout_prob: float = 0.1  # dropout probability in the encoder and the output network
    # dropout probability of the image features
    input_dropout_prob: float = setting(0.1, defines_model=True, check=check_probability)
    # positional encoding of the set, which is unordered: any value but none makes the model depend on the order
    positions: Positions = "none"
    # how images of a set see each other (Lee et al. 2019): self-attention (none), self-attention through 16 learned
    # points (isab), or self-attention and a pooled vector of the whole set, which is added to each element (pma)
    pooling: Literal["none", "isab", "pma"] = setting("none", defines_model=True)
    # directory of the CIFAR-100 data and features
    data_dir: Path = setting(Path("data"), per_machine=True)
    # where the table of features is stored: device, host (which sends each batch's rows), or auto (host if the table is
    # larger than 1 GiB)
    features_on: Literal["auto", "device", "host"] = setting("auto", per_machine=True)

    def resolved(self, steps_per_epoch: int) -> "AnomalyConfig":
        """Return the same settings. The check is here, not in the constructor, so that runs of old versions still load.

        Raises:
            InputError: the positions belong to self-attention, which the model does not have.
        """
        if self.pooling == "isab" and self.positions in ("rotary", "alibi", "relative"):
            raise InputError(
                f"positions is {self.positions}; it needs self-attention, but pooling isab has none"
            )
        return super().resolved(steps_per_epoch)

    def idle(self) -> dict[str, str]:
        reasons = super().idle()
        if self.dataset != "cifar100":
            reasons["data_dir"] = "only cifar100 uses it"
        return reasons

    def table(self) -> FeatureTable:
        """Features, label and split of every image."""
        raise NotImplementedError

    def features_of(self, images: Num[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        """Compute the features of images, if the data set has an `image_shape`.

        Raises:
            InputError: a pixel is out of range, or the network cannot be loaded.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsConfig(AnomalyConfig):
    """Find the odd one among handwritten digits of 8×8 pixels, which scikit-learn contains.

    The defaults reach about 99 % on test, in 15 seconds on two CPU cores.
    """

    dataset = "digits"
    image_shape = (8, 8)
    max_epochs: int = 60  # passes over the training set
    lr: float = 1e-3  # peak learning rate of the schedule

    def table(self) -> FeatureTable:
        return digits_table()

    def features_of(self, images: Num[np.ndarray, "*B 8 8"]) -> Float[np.ndarray, "*B 64"]:
        return digits_features(images)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cifar100Config(AnomalyConfig):
    """Find the odd one among images of CIFAR-100, from the features of a network that was trained on ImageNet.

    The defaults are the tutorial's settings, with which it reports 94.66 % on test.
    """

    dataset = "cifar100"
    image_shape = (32, 32, 3)
    max_epochs: int = 100  # passes over the training set
    model_dim: int = 256  # width of the model
    num_layers: int = 4  # encoder blocks
    # directory of precomputed feature files, if any
    features_dir: Path | None = setting(None, per_machine=True)
    # width and height, in pixels, to which images are enlarged for the network
    resolution: int = setting(224, least=1, most=MAX_RESOLUTION)
    # directory with train/CLASS/*.png and test/CLASS/*.png; none for the published archive in data_dir
    images: Path | None = setting(None, changes_result=False)
    # network that computes the features: resnet34, or FILE.py:FUNCTION, a function of your own
    features_by: str = setting(RESNET34, check=check_features_by)

    def table(self) -> FeatureTable:
        return cifar100_table(
            self.data_dir, self.features_dir, self.resolution, self.images, self.features_by
        )

    def has_features(self) -> bool:
        """Whether the features need not be computed."""
        cache = cache_of(self.data_dir, self.features_by)
        return self.features_dir is not None or all((cache / name).is_file() for name in FILE_NAMES)

    def features_of(self, images: Num[np.ndarray, "*B 32 32 3"]) -> Float[np.ndarray, "*B F"]:
        network = network_of(self.features_by, self.data_dir)
        features = features_by(network, images.reshape(-1, *self.image_shape), self.resolution)
        return features.reshape(*images.shape[:-3], -1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesConfig(AnomalyConfig):
    """Find the odd one among images whose features and labels are in files of your own.

    The features may be larger than memory: only the rows of a batch are read.
    """

    dataset = "files"
    image_shape = ()
    # .npy file of the images' features, [images, features], memory-mapped
    features: Path | None = None
    labels: Path | None = None  # .npy file of the images' classes, integers, [images]
    # directory of the images, in one folder per class, for pictures of sets; the rows of features and labels must be in
    # the order of the folders' names, then of the files' names
    images: Path | None = setting(None, changes_result=False)
    max_epochs: int = 60  # passes over the training set
    lr: float = 1e-3  # peak learning rate of the schedule

    def table(self) -> FeatureTable:
        if self.features is None or self.labels is None:
            name = "features" if self.features is None else "labels"
            raise InputError(f"{name} is None; it must be an .npy file")
        return files_table(self.features, self.labels, self.images)


@dataclasses.dataclass(frozen=True)
class AnomalyData(TaskData):
    """Sets of images: the training sets are drawn anew in each epoch, the others are always the same."""

    train_eval_loader: Loader  # sets of the training images, always the same
    table: FeatureTable


def anomaly_data(config: AnomalyConfig) -> AnomalyData:
    """Load sets of the images of `config.table()`; features are `constants` on the devices, or in each batch."""
    table = config.table()
    on_host = config.features_on == "host"
    if config.features_on == "auto":
        on_host = table.features.nbytes > MAX_TABLE_BYTES
    host_table = table.features if on_host else None
    sets = functools.partial(AnomalySets, table.labels, config.set_size, host_table=host_table)
    loaders = task_loaders(
        config,
        sets(seed=config.seed, subset=table.train, redraw=True),
        sets(seed=42, subset=table.val),
        sets(seed=43, subset=table.test),
    )
    return AnomalyData(
        *loaders,
        train_eval_loader=make_loader(sets(seed=41, subset=table.train), config.batch_size),
        table=table,
        constants=None if on_host else np.asarray(table.features),
    )
