"""CIFAR-100: its images, from the published archive or from folders of PNG files, and their features."""

import functools
import http.client
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import UInt8
from tqdm import tqdm

from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.errors import InputError
from transformer_jax.outside_files import as_input_error
from transformer_jax.runs.own_files import digest_of
from transformer_jax.tasks.anomaly.images import read_exactly
from transformer_jax.tasks.anomaly.network_features import Network, cached_features
from transformer_jax.tasks.anomaly.resnet34 import ACTIVATION, fetch_weights, resnet34
from transformer_jax.tasks.anomaly.sets import Labels, stratified_split
from transformer_jax.tasks.anomaly.tables import FeatureTable, Record, difference, read_features
from transformer_jax.tasks.own_code import imported

ARCHIVE = "cifar-100-python.tar.gz"
FILE_NAMES = ("train_set_features.npz", "test_set_features.npz")  # as in the tutorial
CACHE = "cifar100_features"  # directory of features computed here, separate from the tutorial's
RESNET34 = "resnet34"  # value of the setting `features_by`
SHAPE = (32, 32, 3)  # of an image


class LabelledImages(NamedTuple):
    """Images and labels of one split."""

    images: UInt8[np.ndarray, "N 32 32 3"]
    labels: Labels  # fine labels, 0 … 99
    digest: str  # of the file that holds them, or of images and labels


def check_features_by(name: str, value: str) -> None:
    """Raise an `InputError` unless a setting is `resnet34` or has the form `FILE.py:FUNCTION`."""
    if value != RESNET34 and not re.fullmatch(r".+\.py:\w+", value):
        raise InputError(f"{name} is {value}; it must be {RESNET34}, or FILE.py:FUNCTION")


def cache_of(data_dir: Path, features_by: str) -> Path:
    """Directory of the features that a network computes."""
    if features_by == RESNET34:
        return data_dir / CACHE
    file, _, function = features_by.rpartition(":")
    return data_dir / f"{CACHE}_by_{Path(file).stem}_{function}"


def load_cifar100(data_dir: Path) -> tuple[LabelledImages, LabelledImages]:
    """Load the training and the test split of CIFAR-100 (Krizhevsky, 2009).

    torchvision reads the files after a check of their MD5, and downloads the archive (161 MB) if they are missing.

    Args:
        data_dir: directory of `cifar-100-python/` or of its archive; a download is stored there.

    Raises:
        InputError: the files are missing or damaged, and cannot be downloaded.
    """
    from torchvision.datasets import CIFAR100

    sentence = (
        f"CIFAR-100 is missing or damaged in data_dir {data_dir}, and could not be downloaded from"
        f" {CIFAR100.url}; put {ARCHIVE} there by hand, give folders of images (images=…), or use"
        " dataset='digits', which needs no download"
    )
    with as_input_error(sentence, OSError, RuntimeError, http.client.HTTPException):
        train = CIFAR100(data_dir, train=True, download=True)
        test = CIFAR100(data_dir, train=False, download=True)

    def labelled(split: CIFAR100, digest: str) -> LabelledImages:
        # torchvision's images are a transposed view, in which an image is not contiguous in memory.
        images = np.ascontiguousarray(split.data)
        return LabelledImages(images, np.asarray(split.targets, np.int32), digest)

    ((_, digest_of_train),) = CIFAR100.train_list  # of the only file
    ((_, digest_of_test),) = CIFAR100.test_list
    return labelled(train, digest_of_train), labelled(test, digest_of_test)


def load_folders(directory: Path) -> tuple[LabelledImages, LabelledImages]:
    """Load CIFAR-100 from files: `train/<class>/*.png` and `test/<class>/*.png`, 32×32 pixels.

    Classes in alphabetical order are the labels 0, 1, …; images are in the order of class and file name.

    Args:
        directory: the directory of `train` and `test`.

    Raises:
        InputError: a folder is missing or has no images, the two have different classes, or an image is damaged or of
            another size.
    """
    train = _image_folder(directory, "train")
    test = _image_folder(directory, "test")
    in_one_only = set(train.classes).symmetric_difference(test.classes)
    if in_one_only:
        raise InputError(
            f"images is {directory}; its folders train and test must have the same classes, unlike"
            f" {min(in_one_only)}"
        )
    return _read_split(train), _read_split(test)


def _image_folder(directory: Path, split: str) -> Any:  # an `ImageFolder`
    from torchvision.datasets import ImageFolder

    root = directory / split

    def is_image(file: str) -> bool:
        path = Path(file)
        return path.suffix == ".png" and path.parent.parent == root  # not in a folder of a class

    sentence = (
        f"images is {directory}; it must have folders train/CLASS and test/CLASS of PNG files,"
        f" unlike {split}"
    )
    with as_input_error(sentence, OSError):
        return ImageFolder(root, is_valid_file=is_image)


def _read_split(folder: Any) -> LabelledImages:  # an `ImageFolder`
    progress = tqdm(folder.samples, desc=f"Reading {folder.root}", unit="image", disable=None)
    images = np.stack([read_exactly(path, SHAPE) for path, _ in progress])
    targets = np.array(folder.targets, np.int32)
    return LabelledImages(images, targets, fingerprint([], [images, targets]))


def features_of_splits(
    splits: Sequence[LabelledImages],
    data_dir: Path,
    features_dir: Path | None,
    resolution: int,
    features_by: str = RESNET34,
) -> list[np.ndarray]:
    """Features of each split: from existing files, or by a network, cached as `.npz` files in the directory `cache_of`.

    They are computed again if the cache belongs to other images, another resolution or another network.

    Args:
        splits: the images.
        data_dir: directory of the cache, and of ResNet-34's weights, which are downloaded if they are missing.
        features_dir: directory of existing files, `train_set_features.npz` and `test_set_features.npz`; None computes
            the features.
        resolution: height and width in pixels to which images are resized.
        features_by: `resnet34`, its activation `block4_2` averaged over height and width, or `FILE.py:FUNCTION`.

    Raises:
        InputError: the weights cannot be downloaded, the function cannot be imported, a file is damaged, or an existing
            file belongs to other images according to its size or its record.
    """
    directory = features_dir or cache_of(data_dir, features_by)
    network = functools.partial(network_of, features_by, data_dir)
    tables: list[np.ndarray] = []
    for name, split in zip(FILE_NAMES, splits, strict=True):
        path = directory / name
        if features_dir is None:
            model = _model_of(features_by)
            record: Record = {"data": split.digest, "model": model, "resolution": resolution}
            features = cached_features(path, split.images, record, network)
        else:
            features, stored_record = read_features(path)
            reason = difference(stored_record, {"data": split.digest, "resolution": resolution})
            if reason is not None:
                raise InputError(
                    f"{path} cannot be used: {reason}; leave out features_dir to compute the features"
                )
        tables.append(features)
        # both files must have the same width
        shape = len(split.labels), tables[0].shape[1]
        if features.shape != shape:
            raise InputError(
                f"feats in {path} has shape {features.shape}; it must be {shape}, one row for each"
                " image"
            )
    return tables


def network_of(features_by: str, data_dir: Path) -> Network:
    """The network that `features_by` names; ResNet-34's weights are downloaded once.

    Raises:
        InputError: the weights cannot be downloaded, or the function cannot be imported.
    """
    if features_by != RESNET34:
        with _importing(features_by):
            return imported(features_by)
    fetch_weights(data_dir)
    return resnet34(data_dir)


def _model_of(features_by: str) -> str:
    """What identifies a network in the record of its features."""
    if features_by == RESNET34:
        return f"flaxmodels.ResNet34 imagenet {ACTIVATION} averaged"
    file, _, function = features_by.rpartition(":")
    with _importing(features_by):
        return f"{function} of {Path(file).name}, SHA-256 {digest_of(Path(file))}"


def _importing(features_by: str) -> AbstractContextManager[None]:
    sentence = f"features_by is {features_by}; it must be {RESNET34}, or FILE.py:FUNCTION"
    return as_input_error(sentence, Exception)


def cifar100_table(
    data_dir: Path,
    features_dir: Path | None,
    resolution: int,
    images: Path | None,
    features_by: str,
) -> FeatureTable:
    """CIFAR-100 with the features of a network.

    Validation is the first tenth of each training class, as published, or of images in folders a tenth that is drawn
    always in the same way, since the names of files in order would select few kinds of a class.

    Args:
        data_dir: directory of the archive, the weights and the cache of features.
        features_dir: directory of existing features, `train_set_features.npz` and `test_set_features.npz`; None
            computes them.
        resolution: height and width in pixels to which images are resized.
        images: directory of image folders, see `load_folders`; None for the published archive.
        features_by: network, see `features_of_splits`.

    Raises:
        InputError: a file is missing and cannot be downloaded, is damaged, or is not of these images.
    """
    splits = load_cifar100(data_dir) if images is None else load_folders(images)
    parts = features_of_splits(splits, data_dir, features_dir, resolution, features_by)
    labels = np.concatenate([split.labels for split in splits])
    pixels = np.concatenate([split.images for split in splits])
    order = np.arange(len(splits[0].labels))  # of the training split
    if images is not None:
        order = np.random.default_rng(0).permutation(order)
    train, val = stratified_split(labels[order], 0.1)
    return FeatureTable(
        features=np.concatenate(parts),
        labels=labels,
        images=pixels,
        train=np.sort(order[train]),
        val=np.sort(order[val]),
        test=np.arange(len(order), len(labels)),
    )
