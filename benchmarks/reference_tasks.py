"""The two tasks of the reference loops: settings, positions, and datasets that give one sample at a time."""

import dataclasses
from typing import ClassVar

import numpy as np
from torch.utils.data import Dataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReferenceTask:
    """Settings of both tasks; a subclass sets their values, and defines `dataset(seed)`.

    `seed` determines the samples that the training set redraws in every epoch.
    """

    # labels for each number, and positions; otherwise one label for a set of features
    is_sequence: ClassVar[bool]

    input_dim: int  # features of an element
    num_classes: int  # C
    model_dim: int  # D
    num_heads: int  # H
    num_layers: int  # L
    dropout_prob: float  # inside the encoder and the output network
    input_dropout_prob: float  # of the inputs
    batch_size: int  # samples in one step
    warmup: int  # steps in which the learning rate rises from 0 to its peak
    epochs: int  # passes over the training set
    lr: float = 5e-4  # peak learning rate
    gradient_clip: float = 1.0  # largest global norm of the gradient


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverseTask(ReferenceTask):
    """Reverse a sequence of numbers."""

    is_sequence: ClassVar[bool] = True

    input_dim: int = 10  # the numbers are 0 … input_dim - 1
    num_classes: int = 10
    model_dim: int = 32
    num_heads: int = 1
    num_layers: int = 1
    dropout_prob: float = 0.0
    input_dropout_prob: float = 0.0
    batch_size: int = 128
    warmup: int = 50
    epochs: int = 10
    seq_len: int = 16  # T, numbers in a sequence
    size: int = 50_000  # sequences

    def dataset(self, seed: int) -> Dataset:
        return ReverseDataset(self.input_dim, self.seq_len, self.size, seed=42)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnomalyTask(ReferenceTask):
    """Find the odd one out in a set, with the sizes of CIFAR-100 and synthetic features."""

    is_sequence: ClassVar[bool] = False

    input_dim: int = 512
    num_classes: int = 1
    model_dim: int = 256
    num_heads: int = 4
    num_layers: int = 4
    dropout_prob: float = 0.1
    input_dropout_prob: float = 0.1
    batch_size: int = 64
    warmup: int = 100
    epochs: int = 100
    set_size: int = 10  # T, images in a set, the odd one included
    num_image_classes: int = 100  # classes that the images are of
    images_per_class: int = 450
    class_spread: float = 1.0  # standard deviation of the class means; that within a class is 1

    def features(self) -> np.ndarray:
        """Return features, float32 `[classes, images of a class, features]`, with a fixed seed."""
        rng = np.random.default_rng(0)
        class_means = self.class_spread * rng.standard_normal(
            (self.num_image_classes, 1, self.input_dim), np.float32
        )
        shape = self.num_image_classes, self.images_per_class, self.input_dim
        return class_means + rng.standard_normal(shape, np.float32)

    def dataset(self, seed: int) -> Dataset:
        return AnomalyDataset(self.features(), self.set_size, seed)


class ReverseDataset(Dataset):
    """Sequences of uniformly drawn numbers, each with its reversal as labels."""

    def __init__(self, num_categories: int, seq_len: int, size: int, seed: int) -> None:
        # [N T]
        self.inputs = np.random.default_rng(seed).integers(num_categories, size=(size, seq_len))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        inputs = self.inputs[index]
        return inputs, inputs[::-1].copy()  # PyTorch does not support negative strides


class AnomalyDataset(Dataset):
    """A set for each image, in which it is the odd one and comes after images of one other class.

    Args:
        features: `[classes, images of a class, features]`.
        set_size: T, images in a set.
        seed: seed of the random sets; each access draws a new one.
    """

    def __init__(self, features: np.ndarray, set_size: int, seed: int) -> None:
        self.num_image_classes, self.images_per_class, feature_dim = features.shape
        self.features = features.reshape(-1, feature_dim)  # [N features]
        self.set_size = set_size
        self.rng = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Features `[T, features]`, the images' indices `[T]`, and which of them is the odd one."""
        image_class = self.rng.integers(self.num_image_classes - 1)
        # any class but the odd image's
        image_class += image_class >= index // self.images_per_class
        others = self.rng.choice(self.images_per_class, size=self.set_size - 1, replace=False)
        members = np.append(image_class * self.images_per_class + others, index)
        # The odd one is last, as in the tutorial; a permutation-equivariant model cannot use the position.
        return self.features[members], members, self.set_size - 1


def positions(length: int, width: int) -> np.ndarray:
    """Sinusoidal positions, float32 `[T, D]`; sines on even columns, cosines on odd ones."""
    column = np.arange(width)
    angle = np.arange(length)[:, None] / 10_000 ** (column // 2 * 2 / width)
    return np.where(column % 2, np.cos(angle), np.sin(angle)).astype(np.float32)


TASKS = {"reverse": ReverseTask(), "anomaly": AnomalyTask()}
