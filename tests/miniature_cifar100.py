"""A miniature CIFAR-100 on disk: the files, names and arrays of the published one."""

import hashlib
import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from local_server import UNREACHABLE

FOLDER = "cifar-100-python"
CIFAR100 = "torchvision.datasets.CIFAR100"  # as `monkeypatch` takes it: importing it takes seconds


def write_miniature(
    data_dir: Path, *, num_classes: int = 100, train_per_class: int = 3, test_per_class: int = 1, seed: int = 0
) -> None:
    """Write `cifar-100-python/{train,test,meta}` with random images and classes in random order."""
    rng = np.random.default_rng(seed)
    folder = data_dir / FOLDER
    folder.mkdir(parents=True)
    for split, per_class in (("train", train_per_class), ("test", test_per_class)):
        labels = rng.permutation(np.repeat(np.arange(num_classes), per_class))
        # A gradient over each image, so that how it is resized matters, in the layout [N 3·32·32] of the original.
        slopes = rng.uniform(-4, 4, size=(len(labels), 3, 2, 1))
        pixels = np.arange(32) - 15.5
        images = 128 + slopes[:, :, 0, :, None] * pixels[:, None] + slopes[:, :, 1, :, None] * pixels
        images += rng.uniform(-60, 60, size=images.shape)
        batch = {
            "filenames": [f"image_s_{index:06}.png" for index in range(len(labels))],
            "batch_label": f"{split}ing batch 1 of 1",
            "fine_labels": labels.tolist(),
            "coarse_labels": (labels // 5).tolist(),
            "data": images.clip(0, 255).astype(np.uint8).reshape(len(labels), 3072),
        }
        (folder / split).write_bytes(pickle.dumps(batch, protocol=2))
    names = {
        "fine_label_names": [f"class_{label}" for label in range(num_classes)],
        "coarse_label_names": [f"superclass_{label}" for label in range(-(-num_classes // 5))],
    }
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))


def archive_of(data_dir: Path) -> bytes:
    """Return the folder as the bytes of `cifar-100-python.tar.gz`."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(data_dir / FOLDER, FOLDER)
    return buffer.getvalue()


def accept(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    """Make torchvision accept these files as the published ones, and unable to download any."""
    md5 = {name: hashlib.md5((data_dir / FOLDER / name).read_bytes()).hexdigest() for name in ("train", "test", "meta")}
    for name in ("train", "test"):
        monkeypatch.setattr(f"{CIFAR100}.{name}_list", [[name, md5[name]]])
    meta = {"filename": "meta", "key": "fine_label_names", "md5": md5["meta"]}
    monkeypatch.setattr(f"{CIFAR100}.meta", meta)
    monkeypatch.setattr(f"{CIFAR100}.url", f"{UNREACHABLE}/cifar-100-python.tar.gz")
