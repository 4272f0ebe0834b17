"""CIFAR-100: images in torchvision's format, and their features, cached until images or network change."""

import hashlib
import json
import pickle
import subprocess
import sys

import miniature_cifar100 as miniature
import numpy as np
import pytest
from commands import path_of
from local_server import UNREACHABLE, serve

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly import cifar100, network_features
from transformer_jax.tasks.anomaly.cifar100 import features_of_splits, load_cifar100

pytestmark = pytest.mark.slow  # torchvision takes seconds to import

BY_HAND = r"put cifar-100-python.tar.gz there by hand.*images=….*dataset='digits', which needs no download \(.+\)"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("original")
    miniature.write_miniature(data_dir, num_classes=7)
    return data_dir


@pytest.fixture
def archive(original, monkeypatch):
    """Archive of the miniature; torchvision accepts it as the published one, which cannot be downloaded."""
    archive = miniature.archive_of(original)
    miniature.accept(monkeypatch, original)
    monkeypatch.setattr(f"{miniature.CIFAR100}.tgz_md5", hashlib.md5(archive).hexdigest())
    return archive


def assert_is_the_original(splits, original):
    for split, name, size in zip(splits, ("train", "test"), (21, 7), strict=True):
        content = (original / miniature.FOLDER / name).read_bytes()
        entry = pickle.loads(content, encoding="latin1")
        assert split.labels.tolist() == entry["fine_labels"]
        # On disk an image is three planes, red, green and blue, of 32 rows.
        np.testing.assert_array_equal(split.images.transpose(0, 3, 1, 2).reshape(size, 3072), entry["data"])
        assert split.images.dtype == np.uint8
        assert split.images.flags.c_contiguous
        assert split.digest == hashlib.md5(content).hexdigest()


def test_images_are_those_on_disk_and_an_archive_put_by_hand_is_unpacked(tmp_path, original, archive):
    assert_is_the_original(load_cifar100(original), original)
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(archive)
    assert_is_the_original(load_cifar100(tmp_path), original)


@pytest.mark.parametrize("failure", ["unreachable", "other content"])
def test_a_failed_download_says_what_to_do_and_the_next_one_may_succeed(
    tmp_path, original, archive, monkeypatch, failure
):
    with serve({"/a.tar.gz": archive[:-9] + b"!" * 9}) as (url, _):
        if failure != "unreachable":
            monkeypatch.setattr(f"{miniature.CIFAR100}.url", f"{url}/a.tar.gz")
        with pytest.raises(InputError, match=rf"not be downloaded from http\S+\.tar\.gz; {BY_HAND}") as caught:
            load_cifar100(tmp_path)
    assert "\n" not in str(caught.value)
    with serve({"/b.tar.gz": archive}) as (url, _):
        monkeypatch.setattr(f"{miniature.CIFAR100}.url", f"{url}/b.tar.gz")
        assert_is_the_original(load_cifar100(tmp_path), original)


def test_without_a_network_the_command_prints_one_line_alone(tmp_path):
    """Including Python's exit, at which libraries below torchvision print pages if their garbage is not collected."""
    program = (
        "import runpy, sys; from torchvision.datasets import CIFAR100\n"
        f"CIFAR100.url = {UNREACHABLE + '/cifar-100-python.tar.gz'!r}\n"
        "del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    arguments = ["--dataset", "cifar100", "--data-dir", tmp_path]
    command = [sys.executable, "-c", program, path_of("anomaly.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "use --dataset digits, which needs no download" in line


COMPUTED: list[int] = []  # images in each call of `features_by`


def features_by(network, images, resolution) -> np.ndarray:
    """Stand-in for the network: the features are an image's first numbers."""
    COMPUTED.append(len(images))
    return images.reshape(-1, 3072)[:, :512].astype(np.float32)


@pytest.fixture
def splits(tmp_path, original, archive, monkeypatch):
    monkeypatch.setattr(network_features, "features_by", features_by)
    monkeypatch.setattr(cifar100, "fetch_weights", lambda _: None)
    monkeypatch.setattr(cifar100, "resnet34", lambda _: None)
    monkeypatch.setattr(network_features, "PART", 10)
    return load_cifar100(original)


def compute(data_dir, splits, resolution=16) -> list[int]:
    """Check the features from the cache, and return how many images each call computed."""
    COMPUTED.clear()
    tables = features_of_splits(splits, data_dir, None, resolution)
    computed = [*COMPUTED]
    for table, split in zip(tables, splits, strict=True):
        np.testing.assert_array_equal(table, features_by(None, split.images, 0))
    return computed


def test_features_are_computed_once_and_written_as_the_tutorial_does(tmp_path, splits):
    assert compute(tmp_path, splits) == [10, 10, 1, 7]
    assert compute(tmp_path, splits) == []
    files = sorted((tmp_path / "cifar100_features").iterdir())
    assert [path.name for path in files] == ["test_set_features.npz", "train_set_features.npz"]
    with np.load(files[0], allow_pickle=False) as file:
        np.testing.assert_array_equal(file["feats"], features_by(None, splits[1].images, 0))
        assert str(file["provenance"]) == (
            f'{{"data": "{splits[1].digest}", "model": "flaxmodels.ResNet34 imagenet block4_2 averaged", '
            '"resolution": 16}'
        )


def test_features_of_other_images_resolution_or_network_are_computed_again(tmp_path, splits, capsys, monkeypatch):
    compute(tmp_path, splits)
    assert compute(tmp_path, splits, 13) == [10, 10, 1, 7]
    assert "test_set_features.npz: resolution was 16 and is now 13." in capsys.readouterr().out
    other = [splits[0], splits[1]._replace(images=splits[1].images[::-1], digest="other")]
    assert compute(tmp_path, other, 13) == [7]
    np.savez(tmp_path / "cifar100_features" / "test_set_features.npz", feats=np.ones((7, 512), np.float32))
    assert compute(tmp_path, other, 13) == [7]
    assert "the file has no record of its provenance" in capsys.readouterr().out
    monkeypatch.setattr(cifar100, "_model_of", lambda features_by: "another network")
    assert compute(tmp_path, other, 13) == [10, 10, 1, 7]


def test_a_damaged_cache_is_an_error_and_no_reason_to_compute_for_hours(tmp_path, splits):
    compute(tmp_path, splits)
    path = tmp_path / "cifar100_features" / "train_set_features.npz"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match=r"train_set_features.npz is not an .npz"):
        features_of_splits(splits, tmp_path, None, 16)


def test_ready_files_are_taken_if_they_have_a_row_for_each_image_and_are_of_these(tmp_path, splits):
    for records, size, message in (
        ([{}, {}], 21, None),
        ([{}, {}], 20, r"train_set_features.npz has shape \(20, 512\); it must be \(21, 512\), one row for each image"),
        ([{}, {"resolution": 16}], 21, "test_set_features.npz cannot be used: resolution was 16 and is now 224"),
    ):
        for name, record, rows in zip(cifar100.FILE_NAMES, records, (size, 7), strict=True):
            more = {"provenance": json.dumps(record)} if record else {}
            np.savez(tmp_path / name, feats=np.full((rows, 512), rows, np.float32), **more)
        if message is None:
            assert [table[0, 0] for table in features_of_splits(splits, tmp_path, tmp_path, 224)] == [21, 7]
        else:
            with pytest.raises(InputError, match=message):
                features_of_splits(splits, tmp_path, tmp_path, 224)
