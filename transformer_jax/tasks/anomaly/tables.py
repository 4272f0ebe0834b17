"""Feature tables for the anomaly task: features, label, pixels and split of every image."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, Num

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.cifar100 import cached_features, load_cifar100, ready_features
from transformer_jax.tasks.anomaly.feature_files import as_table, map_array
from transformer_jax.tasks.anomaly.sets import stratified_split

MAX_PIXEL = 16  # of scikit-learn's digits


class FeatureTable(NamedTuple):
    """Images of all splits in one table."""

    features: Float[np.ndarray, "N F"]  # float32, perhaps mapped
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
    images = digits.images[order]
    return FeatureTable(digits_features(images), labels, images, *_split(labels))


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

    Args:
        data_dir: directory of the images, the weights and the cache of features.
        features_dir: directory of ready features, `train_set_features.npz` and `test_set_features.npz`, which replace
            the computation; None if there are none.
        resolution: pixels to which the height and the width of images are resized.
        pretrained: as for `cached_features`.

    Raises:
        InputError: a file is missing and cannot be downloaded, is damaged, or is not of these images.
    """
    splits = load_cifar100(data_dir)
    if features_dir is None:
        parts = cached_features(data_dir, splits, resolution, pretrained)
    else:
        parts = ready_features(features_dir, splits, resolution)
    labels, images = (np.concatenate([getattr(split, name) for split in splits]) for name in ("labels", "images"))
    num_train = len(splits[0].labels)
    train, val = stratified_split(labels[:num_train], 0.1)
    return FeatureTable(np.concatenate(parts), labels, images, train, val, np.arange(num_train, len(labels)))


def files_table(features: Path, labels: Path) -> FeatureTable:
    """Features and labels of images in `.npy` files. Features in float32 are mapped: they may be larger than memory.

    A fifth of each class is for test, and a tenth of the rest for validation, drawn always in the same way.

    Raises:
        InputError: a file cannot be read, or is no plain array; features are not finite numbers `[N, F]`, labels no
            whole numbers `[N]`.
    """
    classes = np.array(map_array(labels))
    rows = as_table(str(features), map_array(features))
    if classes.shape != (len(rows),):
        raise InputError(
            f"{labels} has shape {classes.shape}; it must be [{len(rows)}], one for each row of {features}"
        )
    order = np.random.default_rng(0).permutation(len(classes))
    return FeatureTable(rows, classes, None, *(np.sort(order[part]) for part in _split(classes[order])))


def _split(labels: Int[np.ndarray, " N"]) -> tuple[Int[np.ndarray, " N_part"], ...]:
    """Training, validation and test set: a fifth of each class for test, a tenth of the rest for validation."""
    rest, test = stratified_split(labels, 0.2)
    train, val = stratified_split(labels[rest], 0.1)
    return rest[train], rest[val], test
