"""CIFAR-100 and the features of its images, computed by a ResNet-34 and cached, or read from existing files."""

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8
from tqdm import tqdm

from transformer_jax.errors import InputError, in_one_line
from transformer_jax.tasks.anomaly.resnet34 import ACTIVATION, Features, fetch_weights, resnet34_features
from transformer_jax.tasks.anomaly.sets import stratified_split
from transformer_jax.tasks.anomaly.tables import FeatureTable, Record, difference, read_features

FOLDER = "cifar-100-python"
ARCHIVE = "cifar-100-python.tar.gz"
FILE_NAMES = ("train_set_features.npz", "test_set_features.npz")  # as in the tutorial
CACHE = "cifar100_features"  # directory of features computed here, separate from the tutorial's
MODEL = f"flaxmodels.ResNet34 imagenet {ACTIVATION} averaged"  # network of computed features
BATCH_SIZE = 64  # images in one pass through the network
SHOWN = 1024  # images per step of the progress bar


class LabelledImages(NamedTuple):
    """Images and labels of one split."""

    images: UInt8[np.ndarray, "N 32 32 3"]
    labels: Int[np.ndarray, " N"]  # fine labels, 0 … 99
    digest: str  # MD5 of the file that holds them


def has_features(data_dir: Path) -> bool:
    """Whether a directory has features of CIFAR-100 computed here, judging by file names."""
    return all((data_dir / CACHE / name).is_file() for name in FILE_NAMES)


def load_cifar100(data_dir: Path) -> tuple[LabelledImages, LabelledImages]:
    """Load the training and the test split of CIFAR-100 (Krizhevsky, 2009).

    torchvision reads the files after a check of their MD5, and downloads the archive (161 MB) if they are missing.

    Args:
        data_dir: directory of `cifar-100-python/` or of its archive; a download is stored there.

    Raises:
        InputError: the files are missing or damaged, and cannot be downloaded.
    """
    from torchvision.datasets import CIFAR100

    try:
        train, test = (CIFAR100(data_dir, train=train, download=True) for train in (True, False))
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise InputError(
            f"CIFAR-100 is missing or damaged in data_dir {data_dir}, and could not be downloaded from {CIFAR100.url} "
            f"({in_one_line(error)}); put {ARCHIVE} there by hand, or use --dataset digits, which needs no download"
        ) from error
    digests = dict([*CIFAR100.train_list, *CIFAR100.test_list])

    def labelled(split: CIFAR100, name: str) -> LabelledImages:
        # torchvision's images are a transposed view, in which an image is not contiguous in memory.
        return LabelledImages(np.ascontiguousarray(split.data), np.asarray(split.targets, np.int32), digests[name])

    return labelled(train, "train"), labelled(test, "test")


def ready_features(features_dir: Path, splits: Sequence[LabelledImages], resolution: int) -> list[np.ndarray]:
    """Read the features of each split from existing files, `train_set_features.npz` and `test_set_features.npz`.

    Raises:
        InputError: a file cannot be read, or belongs to other images according to its size or its record.
    """
    tables: list[np.ndarray] = []
    for name, split in zip(FILE_NAMES, splits, strict=True):
        features, record = read_features(path := features_dir / name)
        if reason := difference(record, {"data": split.digest, "resolution": resolution}):
            raise InputError(f"{path} cannot be used: {reason}; leave out features_dir to compute the features")
        if len(features) != (size := len(split.labels)):
            raise InputError(f"feats in {path} has {len(features)} rows; it must have {size}, one for each image")
        if features.shape[1] != (width := (tables or [features])[0].shape[1]):
            raise InputError(f"feats in {path} has width {features.shape[1]}; the other file has width {width}")
        tables.append(features)
    return tables


def cached_features(data_dir: Path, splits: Sequence[LabelledImages], resolution: int) -> list[np.ndarray]:
    """Compute each split's features: the ResNet-34's activation `block4_2`, averaged over height and width.

    They are cached as `data_dir/cifar100_features/*.npz` under the key `feats`, and recomputed if the cache belongs to
    other images or another resolution.

    Args:
        data_dir: directory of the cache, and of the weights, which are downloaded if they are missing.
        splits: the images.
        resolution: height and width in pixels to which images are resized.

    Raises:
        InputError: the weights cannot be downloaded; or a file is damaged.
    """
    paths = [data_dir / CACHE / name for name in FILE_NAMES]
    records: list[Record] = [{"data": split.digest, "model": MODEL, "resolution": resolution} for split in splits]
    for path, split, record in zip(paths, splits, records, strict=True):
        if reason := _reason_to_compute(path, record):
            print(f"Computing {path}: {reason}.")
            fetch_weights(data_dir)
            features = resnet34_features(data_dir, resolution, BATCH_SIZE)
            _compute(path, split.images, record, features)
    return [read_features(path)[0] for path in paths]


def _reason_to_compute(path: Path, wanted: Record) -> str | None:
    if not path.exists():
        return "the file does not exist"
    _, record = read_features(path)
    return difference(record, wanted) if record else "the file has no record of its provenance"


def _compute(path: Path, images: UInt8[np.ndarray, "N 32 32 3"], record: Record, features: Features) -> None:
    """Compute the features of images and write them to a file, which appears only when it is complete."""
    starts = tqdm(range(0, len(images), SHOWN), unit_scale=SHOWN, unit="image", desc=path.stem, disable=None)
    found = np.concatenate([features(images[start : start + SHOWN]) for start in starts])
    path.parent.mkdir(parents=True, exist_ok=True)
    with (temporary := path.with_suffix(".unfinished")).open("wb") as file:
        np.savez(file, feats=found, provenance=np.array(json.dumps(record)))
    temporary.replace(path)


def cifar100_table(data_dir: Path, features_dir: Path | None, resolution: int) -> FeatureTable:
    """CIFAR-100 with the features of a ResNet-34; validation is the first tenth of each training class.

    Args:
        data_dir: directory of the images, the weights and the cache of features.
        features_dir: directory of existing features, `train_set_features.npz` and `test_set_features.npz`; None
            computes them.
        resolution: height and width in pixels to which images are resized.

    Raises:
        InputError: a file is missing and cannot be downloaded, is damaged, or is not of these images.
    """
    splits = load_cifar100(data_dir)
    if features_dir is None:
        parts = cached_features(data_dir, splits, resolution)
    else:
        parts = ready_features(features_dir, splits, resolution)
    labels, images = (np.concatenate([getattr(split, name) for split in splits]) for name in ("labels", "images"))
    num_train = len(splits[0].labels)
    train, val = stratified_split(labels[:num_train], 0.1)
    return FeatureTable(np.concatenate(parts), labels, images, train, val, np.arange(num_train, len(labels)))
