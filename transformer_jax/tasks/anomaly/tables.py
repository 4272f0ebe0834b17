"""Feature tables for the anomaly task: features, label, pixels and split of every image, and NumPy files with them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Float, Int, Num, Shaped

from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file
from transformer_jax.tasks.anomaly.images import MAX_PIXEL, FolderImages
from transformer_jax.tasks.anomaly.sets import Labels, Table, as_table, stratified_split

MAX_BYTES = 2**32  # of an .npz; CIFAR-100 by a network of 16 000 features takes 3 GB
MAX_MAPPED_BYTES = 2**44  # of an .npy

Record: TypeAlias = Mapping[str, str | int]  # what features were computed with
# [N, height, width] or [N, height, width, 3], by row
Images: TypeAlias = Num[np.ndarray, "N ..."] | FolderImages


class FeatureTable(NamedTuple):
    """Images of all splits in one table."""

    features: Table  # float32, possibly memory-mapped
    labels: Labels
    images: Images | None  # for pictures, if any
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
    """The features of digits: their pixels, 0 … 16, scaled to 0 … 1.

    Raises:
        InputError: a pixel is outside 0 … 16, or not finite.
    """
    outside = images[~((images >= 0) & (images <= MAX_PIXEL))]
    if outside.size:
        raise InputError(
            f"inputs holds the pixel {outside[0]}; pixels of the digits may be 0 … {MAX_PIXEL}"
        )
    features: Float[np.ndarray, "*B 64"] = images.reshape(*images.shape[:-2], 64) / MAX_PIXEL
    return features.astype(np.float32)


def files_table(features: Path, labels: Path, images: Path | None = None) -> FeatureTable:
    """Load features and labels of images from `.npy` files. float32 features are memory-mapped, not read into memory.

    A fifth of each class is for test, and a tenth of the rest for validation, always drawn in the same way.

    Args:
        features: file of the images' features.
        labels: file of their classes.
        images: directory of the images themselves, if pictures should show them; see `FolderImages`.

    Raises:
        InputError: a file cannot be read or is not a plain array; features are not finite numbers `[N, F]`; labels are
            not whole numbers `[N]`; or the images do not belong to them.
    """
    classes = np.array(map_array(labels))
    rows = as_table(str(features), map_array(features))
    if classes.shape != (len(rows),):
        raise InputError(
            f"{labels} has shape {classes.shape}; it must be [{len(rows)}], one for each row of"
            f" {features}"
        )
    order = np.random.default_rng(0).permutation(len(classes))
    parts = [np.sort(order[part]) for part in _split(classes[order])]
    pictures = None if images is None else FolderImages(images, classes)
    return FeatureTable(rows, classes, pictures, *parts)


def _split(labels: Labels) -> tuple[Int[np.ndarray, " N_part"], ...]:
    """Training, validation and test set: a fifth of each class for test, a tenth of the rest for validation."""
    rest, test = stratified_split(labels, 0.2)
    train, val = stratified_split(labels[rest], 0.1)
    return rest[train], rest[val], test


def read_features(path: Path) -> tuple[Table, Record]:
    """Read features, as float32, under the key `feats` of an `.npz`, and their record, empty if there is none.

    Raises:
        InputError: the file cannot be read, lacks the key, is damaged, or holds anything but finite `[N, F]`.
    """
    kind = "an .npz of plain arrays with the key feats"
    # NumPy does not close a damaged archive that it has opened itself.
    with outside_file(path, kind, MAX_BYTES) as file, file.open("rb") as stream:
        arrays = np.load(stream, allow_pickle=False)
        features = as_table(f"feats in {path}", arrays["feats"])
        record = dict(json.loads(str(arrays["provenance"]))) if "provenance" in arrays else {}
    return features, record


def difference(stored: Record, current: Record) -> str | None:
    """Describe the first entry that both records have and in which they differ; None if they agree."""
    for name, value in current.items():
        if stored.get(name, value) != value:
            return f"{name} was {stored[name]!r} and is now {value!r}"
    return None


def map_array(path: Path) -> Shaped[np.ndarray, "..."]:
    """Memory-map the array in an `.npy` file.

    Raises:
        InputError: the file cannot be read, or is not a plain array.
    """
    with outside_file(path, "an .npy of a plain array", MAX_MAPPED_BYTES) as file:
        return np.lib.format.open_memmap(file, mode="r")
