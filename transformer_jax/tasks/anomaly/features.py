"""CIFAR-100 as features of a pretrained ResNet-34: computed once and cached, or read from ready files."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int, UInt8
from tqdm import tqdm

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.cifar100 import has_cifar100_images, load_cifar100
from transformer_jax.tasks.anomaly.feature_cache import FeatureFile, Provenance, read_features
from transformer_jax.tasks.anomaly.resnet34 import ACTIVATION, ResNet34Features, fetch_weights, weights_digest

FILE_NAMES = ("train_set_features.npz", "test_set_features.npz")  # as in the tutorial
MAX_RESOLUTION = 4096  # pixels; the ResNet's first activation of 64 images is 64 GiB then
CACHE = "cifar100_features"  # directory of the files that are computed here, apart from the tutorial's


class ImageFeatures(NamedTuple):
    """Features, labels and pixels of the images of one split."""

    features: Float[np.ndarray, "N 512"]
    labels: Int[np.ndarray, " N"]  # 0 … 99
    images: UInt8[np.ndarray, "N 32 32 3"]


def has_cifar100(data_dir: str | Path) -> bool:
    """Whether images or finished features of CIFAR-100 lie under a directory, by their names alone."""
    return has_features(data_dir) or has_cifar100_images(data_dir)


def has_features(data_dir: str | Path) -> bool:
    """Whether finished features of CIFAR-100 lie under a directory, by their names alone."""
    return all((Path(data_dir) / CACHE / name).is_file() for name in FILE_NAMES)


def cifar100_features(
    data_dir: str | Path,
    features_dir: str | Path | None = None,
    *,
    resolution: int = 224,
    batch_size: int = 64,
    shard_size: int = 1024,
    pretrained: str | None = "imagenet",
    download: bool = True,
) -> tuple[ImageFeatures, ImageFeatures]:
    """The training and the test split of CIFAR-100 with the features of a ResNet-34.

    Images are resized bilinearly, scaled to [0, 1] and normalized with ImageNet's statistics; the features are the
    activation `block4_2`, averaged over height and width. They are cached as `data_dir/cifar100_features/*.npz` under
    the key `feats`, and computed again when the cache is of other images, weights or another resolution.

    Args:
        data_dir: directory of `cifar-100-python/`, of the weights and of the cache.
        features_dir: directory of ready features, `train_set_features.npz` and `test_set_features.npz`, which replace
            the computation; None if there are none.
        resolution: pixels to which the height and the width of images are resized.
        batch_size: images in one pass through the network.
        shard_size: images whose features are written at once, the most that an interruption can lose.
        pretrained: "imagenet" for the published weights; None for random ones, which are for tests alone.
        download: download images and weights that are not under `data_dir`.

    Raises:
        InputError: an argument cannot work; or a file is missing and cannot be downloaded, is damaged, is not the
            published one, or is not of these images.
    """
    _check_arguments(resolution, batch_size, shard_size, pretrained)
    data_dir = Path(data_dir)
    ready_files = [] if features_dir is None else [Path(features_dir) / name for name in FILE_NAMES]
    ready = [read_features(path) for path in ready_files]  # before any download, since it may be an error
    splits = load_cifar100(data_dir, download=download)
    model = f"flaxmodels.ResNet34 {pretrained or 'random'} {ACTIVATION} averaged"
    provenances = [Provenance(data=split.digest, model=model, resolution=resolution) for split in splits]

    def cache() -> list[FeatureFile]:
        weights = weights_digest(data_dir, pretrained)  # None until they are downloaded: then any weights match
        return [
            FeatureFile(data_dir / CACHE / name, len(split.labels), dataclasses.replace(p, weights=weights), shard_size)
            for name, split, p in zip(FILE_NAMES, splits, provenances, strict=True)
        ]

    def extractor() -> ResNet34Features:
        if pretrained:
            fetch_weights(data_dir, download=download)
        return ResNet34Features(data_dir, pretrained, resolution=resolution, batch_size=batch_size)

    if ready:
        for path, split, found, wanted in zip(ready_files, splits, ready, provenances, strict=True):
            _check_ready(path, *found, len(split.labels), wanted)
        tables = [features for features, _ in ready]
    else:
        tables = _cached_features(cache, extractor, [split.images for split in splits], data_dir)
    train, test = (
        ImageFeatures(table, split.labels, split.images) for table, split in zip(tables, splits, strict=True)
    )
    return train, test


def check_resolution(resolution: int) -> None:
    """Raise an `InputError` for a resolution that the ResNet cannot work with, or not in a machine's memory."""
    if not 1 <= resolution <= MAX_RESOLUTION:
        raise InputError(f"resolution is {resolution}; it must be at least 1 and may be at most {MAX_RESOLUTION}")


def _check_arguments(resolution: int, batch_size: int, shard_size: int, pretrained: str | None) -> None:
    check_resolution(resolution)
    for name, value in (("batch_size", batch_size), ("shard_size", shard_size)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be at least 1")
    if pretrained not in ("imagenet", None):
        raise InputError(f"pretrained is {pretrained!r}; it may be 'imagenet' or None")


def _check_ready(
    path: Path, features: np.ndarray, provenance: Provenance | None, num_images: int, wanted: Provenance
) -> None:
    """Raise an `InputError` unless a ready file is of these images, as far as its provenance is known."""
    if provenance and (difference := provenance.difference(wanted)):
        raise InputError(f"{path} cannot be used: {difference}; leave out features_dir to compute the features")
    if len(features) != num_images:
        raise InputError(f"feats in {path} has {len(features)} rows; it must have {num_images}, one for each image")


def _cached_features(
    cache: Callable[[], list[FeatureFile]],
    extractor: Callable[[], ResNet34Features],
    images: Sequence[np.ndarray],
    data_dir: Path,
) -> list[np.ndarray]:
    """The features of each split from the cache, which is completed first.

    Args:
        cache: gives the file of each split; again after the extractor, whose weights may have been downloaded.
        extractor: made where features are missing.
        images: of each split.
        data_dir: for the error message.
    """
    if any(file.read() is None for file in cache()):
        extract = extractor()
        missing = [(file, split) for file, split in zip(cache(), images, strict=True) if file.read() is None]
        try:
            _extract(missing, extract)
        except OSError as error:
            raise InputError(f"data_dir is {data_dir}; it must be a directory that can be written ({error})") from error
    return [read_features(file.path)[0] for file in cache()]


def _extract(missing: Sequence[tuple[FeatureFile, np.ndarray]], extractor: ResNet34Features) -> None:
    """Compute the features that are missing in the files, and finish the files."""
    work = [(file, images, file.begin()) for file, images in missing]
    num_batches = sum(-(-(stop - start) // extractor.batch_size) for *_, ranges in work for start, stop in ranges)
    if num_batches and jax.default_backend() == "cpu":
        _, images, _ = work[0]
        _announce_duration(num_batches * extractor.seconds_per_batch(images[: 2 * extractor.batch_size]))
    for file, images, ranges in work:
        num_done = len(images) - sum(stop - start for start, stop in ranges)
        with tqdm(total=len(images), initial=num_done, unit="image", desc=file.path.stem, disable=None) as progress:
            for start, stop in ranges:
                batches = []
                for features in extractor(images[start:stop]):
                    batches.append(features)
                    progress.update(len(features))
                file.add(start, stop, np.concatenate(batches))
        file.join()


def _announce_duration(seconds: float) -> None:
    duration = "less than a minute" if seconds < 60 else f"about {seconds / 60:.0f} min"
    print(
        f"Extracting the features takes {duration} on this CPU, measured on the first batches. If interrupted, it "
        "continues when started again. Faster: a GPU; ready files (--features-dir); the digits (--dataset digits)."
    )
