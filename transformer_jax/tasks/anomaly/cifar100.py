"""CIFAR-100 as arrays, from disk or downloaded. A download that fails leaves no files."""

import http.client
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from transformer_jax.data.downloads import directory_for_download, in_one_line
from transformer_jax.errors import InputError
from transformer_jax.tasks.data_files import file_size

FOLDER = "cifar-100-python"
ARCHIVE = "cifar-100-python.tar.gz"
FILES = ("train", "test", "meta")  # inside the folder
MAX_BYTES = 2**28  # of a file; the archive has 169 MB


class LabelledImages(NamedTuple):
    """Images and labels of one split."""

    images: UInt8[np.ndarray, "N 32 32 3"]
    labels: Int[np.ndarray, " N"]  # fine labels, 0 … 99
    digest: str  # MD5 of the file that holds them


def has_cifar100_images(data_dir: str | Path) -> bool:
    """Whether CIFAR-100's images lie under a directory, unpacked or as the archive; digests are not checked."""
    folder = Path(data_dir) / FOLDER
    return all((folder / name).is_file() for name in FILES) or (Path(data_dir) / ARCHIVE).is_file()


def load_cifar100(data_dir: str | Path, *, download: bool = True) -> tuple[LabelledImages, LabelledImages]:
    """The training and the test split of CIFAR-100 (Krizhevsky, 2009).

    Args:
        data_dir: directory of `cifar-100-python/` or of its archive, also after a download.
        download: download the archive (161 MB) if neither is there.

    Raises:
        InputError: the files are missing and cannot be downloaded, or one of them does not have the MD5 of the
            published file.
    """
    from torchvision.datasets import CIFAR100

    data_dir = Path(data_dir)
    if not all((data_dir / FOLDER / name).is_file() for name in FILES):
        _fetch(data_dir, download=download)
    digests = dict([*CIFAR100.train_list, *CIFAR100.test_list, (CIFAR100.meta["filename"], CIFAR100.meta["md5"])])
    for name in FILES:  # torchvision checks too, but does not say which file it is
        _check_digest(data_dir / FOLDER / name, digests[name])
    train, test = (CIFAR100(data_dir, train=train) for train in (True, False))
    return _as_arrays(train, digests["train"]), _as_arrays(test, digests["test"])


def _as_arrays(dataset: Any, digest: str) -> LabelledImages:
    # torchvision's images are a transposed view, in which an image is not one piece of memory.
    return LabelledImages(np.ascontiguousarray(dataset.data), np.asarray(dataset.targets, np.int32), digest)


def _fetch(data_dir: Path, *, download: bool) -> None:
    """Unpack the archive, after a download if it is missing, and move its files into place one by one."""
    from torchvision.datasets import CIFAR100
    from torchvision.datasets.utils import extract_archive

    archive = data_dir / ARCHIVE
    by_hand = f"put {ARCHIVE} into {data_dir} by hand, or use the data set that needs no download (--dataset digits)"
    if archive.is_file():
        _check_digest(archive, CIFAR100.tgz_md5)
    elif not download:
        raise InputError(f"CIFAR-100 is not in data_dir {data_dir}, and download is off; {by_hand}")
    source = archive if archive.is_file() else CIFAR100.url
    with directory_for_download(data_dir) as temporary:
        try:
            if source == archive:
                extract_archive(archive, temporary)
            else:
                CIFAR100(temporary, download=True)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            raise InputError(
                f"CIFAR-100 could not be obtained from {source} ({in_one_line(error)}); {by_hand}"
            ) from error
        try:
            (data_dir / FOLDER).mkdir(exist_ok=True)
            for name in FILES:
                (temporary / FOLDER / name).replace(data_dir / FOLDER / name)
        except OSError as error:  # a file in the folder's place, or a directory in a file's
            raise InputError(f"CIFAR-100 cannot be moved into data_dir {data_dir} ({error})") from error


def _check_digest(path: Path, expected: str) -> None:
    from torchvision.datasets.utils import calculate_md5

    file_size(path, MAX_BYTES)  # the digest of a sparse file would take for ever
    try:
        found = calculate_md5(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    if found != expected:
        raise InputError(
            f"{path} is not the published file: its MD5 is {found}; it must be {expected}; "
            "remove the file to download it again"
        )
