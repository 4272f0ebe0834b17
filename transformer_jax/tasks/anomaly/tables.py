"""Feature tables for the anomaly task: features, label, pixels and split of every image."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.features import cifar100_features
from transformer_jax.tasks.anomaly.mapped_rows import MappedRows, array_in, open_rows
from transformer_jax.tasks.anomaly.sets import check_features, stratified_split
from transformer_jax.tasks.mapped_file import MappedFile

MAX_PIXEL = 16  # of scikit-learn's digits
MAX_LABEL_BYTES = 2**35  # of a file of labels, which is read whole: a label for each row


class FeatureTable(NamedTuple):
    """Images of all splits in one table."""

    features: Float[np.ndarray, "N F"] | MappedRows
    labels: Int[np.ndarray, " N"]
    images: Num[np.ndarray, "N ..."] | None  # pixels for pictures, [N, height, width] or [N, height, width, 3], if any
    train: Int[np.ndarray, " N_train"]  # indices of the images in the training set
    val: Int[np.ndarray, " N_val"]
    test: Int[np.ndarray, " N_test"]


def digits_table() -> FeatureTable:
    """scikit-learn's 1 797 handwritten digits, 8×8: pixels / 16 are the 64 features.

    A fifth of each class is for test, and a tenth of the rest for validation. scikit-learn orders the digits by writer,
    so they are shuffled first, always in the same way.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    labels = digits.target[order]
    rest, test = stratified_split(labels, 0.2)
    train, val = stratified_split(labels[rest], 0.1)
    images = digits.images[order]
    return FeatureTable(digits_features(images), labels, images, rest[train], rest[val], test)


def digits_features(images: Num[np.ndarray, "*B 8 8"]) -> Float[np.ndarray, "*B 64"]:
    """The features of digits: their pixels, 0 … 16, as numbers 0 … 1.

    Raises:
        InputError: a pixel is outside 0 … 16, or not finite.
    """
    outside = images[~((images >= 0) & (images <= MAX_PIXEL))]
    if outside.size:
        raise InputError(f"inputs holds the pixel {outside[0]}; pixels of the digits may be 0 … {MAX_PIXEL}")
    features: Float[np.ndarray, "*B 64"] = images.reshape(*images.shape[:-2], 64) / MAX_PIXEL
    return features.astype(np.float32)


def cifar100_table(
    data_dir: Path, features_dir: Path | None = None, resolution: int = 224, pretrained: str | None = "imagenet"
) -> FeatureTable:
    """CIFAR-100 with the features of a ResNet-34; validation is the first tenth of each training class.

    The arguments and the errors are those of `cifar100_features`.
    """
    train_split, test_split = cifar100_features(data_dir, features_dir, resolution=resolution, pretrained=pretrained)
    features, labels, images = (np.concatenate(parts) for parts in zip(train_split, test_split, strict=True))
    check_features(features, labels)
    train, val = stratified_split(train_split.labels, 0.1)
    test = len(train_split.labels) + np.arange(len(test_split.labels))
    return FeatureTable(features, labels, images, train, val, test)


def files_table(features: Path, labels: Path) -> FeatureTable:
    """Features and labels of images in `.npy` files. The features are mapped: they may be larger than memory.

    A fifth of each class is for test, and a tenth of the rest for validation, drawn always in the same way.

    Raises:
        InputError: a file cannot be read, or is no plain array; features are not finite numbers `[N, F]`, labels no
            whole numbers `[N]`.
    """
    classes = _read_labels(labels)
    rows = open_rows(features)
    if len(rows) != len(classes):
        raise InputError(f"{features} has {len(rows)} rows and {labels} {len(classes)} labels; there must be as many")
    order = np.random.default_rng(0).permutation(len(classes))
    rest, test = stratified_split(classes[order], 0.2)
    train, val = stratified_split(classes[order[rest]], 0.1)
    parts = (np.sort(order[part]) for part in (rest[train], rest[val], test))
    return FeatureTable(rows, classes, None, *parts)


def _read_labels(path: Path) -> Int[np.ndarray, " N"]:
    labels = array_in(MappedFile(path, MAX_LABEL_BYTES))
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        found = f"the shape {list(labels.shape)} and the type {labels.dtype}"
        raise InputError(f"{path} has {found}; it must hold whole numbers, [images]")
    return np.array(labels)
