"""CIFAR-100's images: read in torchvision's format, downloaded whole or not at all, and never read unless genuine."""

import hashlib
import os
import pickle
import urllib.error

import miniature_cifar100 as miniature
import numpy as np
import pytest
from local_server import serve
from torchvision.datasets import CIFAR100

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.cifar100 import has_cifar100_images, load_cifar100

BY_HAND = r"put cifar-100-python.tar.gz into .* by hand.*--dataset digits"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("original")
    miniature.write_miniature(data_dir, num_classes=7)
    return data_dir


@pytest.fixture
def archive(original, monkeypatch):
    """The miniature's archive, and torchvision taking it for the published one that nobody can reach."""
    archive = miniature.archive_of(original)
    miniature.accept(monkeypatch, original)
    monkeypatch.setattr(CIFAR100, "tgz_md5", hashlib.md5(archive).hexdigest())
    return archive


def written(data_dir, split):
    entry = pickle.loads((data_dir / miniature.FOLDER / split).read_bytes(), encoding="latin1")
    return entry["data"], entry["fine_labels"]


def assert_is_the_original(splits, original):
    for split, name, size in zip(splits, ("train", "test"), (21, 7), strict=True):
        data, labels = written(original, name)
        assert split.images.shape == (size, 32, 32, 3)
        assert split.images.dtype == np.uint8
        assert split.labels.tolist() == labels
        # On disk an image is three planes, red, green and blue, of 32 rows.
        np.testing.assert_array_equal(
            split.images[3, 5, 11], data[3, [5 * 32 + 11 + plane * 1024 for plane in range(3)]]
        )
        np.testing.assert_array_equal(split.images.transpose(0, 3, 1, 2).reshape(size, 3072), data)
        assert split.images.flags.c_contiguous
        assert split.digest == hashlib.md5((original / miniature.FOLDER / name).read_bytes()).hexdigest()


def test_images_and_labels_are_those_on_disk(original, archive):
    assert_is_the_original(load_cifar100(original, download=False), original)


def test_an_archive_put_by_hand_is_unpacked_and_kept(tmp_path, original, archive):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(archive)
    assert_is_the_original(load_cifar100(tmp_path, download=False), original)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-100-python", "cifar-100-python.tar.gz"]


def test_what_is_missing_is_downloaded_once(tmp_path, original, archive, monkeypatch):
    data_dir = tmp_path / "not" / "yet"
    with serve({"/cifar.tar.gz": archive}) as (url, requests):
        monkeypatch.setattr(CIFAR100, "url", f"{url}/cifar.tar.gz")
        assert_is_the_original(load_cifar100(data_dir), original)
        num_requests = len(requests)
        assert num_requests > 0
        (data_dir / miniature.FOLDER / "test").unlink()
        assert_is_the_original(load_cifar100(data_dir), original)
        assert len(requests) == 2 * num_requests
        assert_is_the_original(load_cifar100(data_dir), original)
        assert len(requests) == 2 * num_requests
    assert [path.name for path in data_dir.iterdir()] == ["cifar-100-python"]


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("failure", ["unreachable", "not found", "cut off", "other content", "nonsense"])
def test_a_failed_download_says_what_to_do_and_leaves_nothing(tmp_path, archive, monkeypatch, failure, exists):
    data_dir = tmp_path / "data"
    if exists:
        data_dir.mkdir()
    pages = {
        "nonsense": {"/a.tar.gz": None},
        "cut off": {"/a.tar.gz": (archive, len(archive) // 2)},
        "other content": {"/a.tar.gz": archive[:-9] + b"!" * 9},
    }
    with serve(pages.get(failure, {})) as (url, _):
        if failure != "unreachable":
            monkeypatch.setattr(CIFAR100, "url", f"{url}/a.tar.gz")
        with pytest.raises(
            InputError, match=rf"CIFAR-100 could not be obtained from {CIFAR100.url} \(.+\); {BY_HAND}"
        ) as caught:
            load_cifar100(data_dir)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value.__cause__, urllib.error.HTTPError):
        caught.value.__cause__.close()  # it holds the connection, which nobody reads to its end
    assert list(tmp_path.rglob("*")) == ([data_dir] if exists else [])


def test_without_download_nothing_is_asked_of_the_network(tmp_path, archive):
    with pytest.raises(InputError, match=rf"CIFAR-100 is not in data_dir .* download is off; {BY_HAND}"):
        load_cifar100(tmp_path / "data", download=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train", "test", "meta"])
def test_a_file_that_is_not_the_published_one_is_named_and_never_unpickled(tmp_path, archive, monkeypatch, name):
    miniature.write_miniature(tmp_path, num_classes=7)
    path = tmp_path / miniature.FOLDER / name
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(pickle, "load", lambda *_, **__: pytest.fail("unpickled"))
    with pytest.raises(
        InputError, match=rf"{path} is not the published file: its MD5 is \w{{32}}; it must be \w{{32}}"
    ):
        load_cifar100(tmp_path)


def test_an_archive_that_is_not_the_published_one_is_not_unpacked(tmp_path, archive):
    path = tmp_path / "cifar-100-python.tar.gz"
    path.write_bytes(archive[:1000])
    with pytest.raises(InputError, match=rf"{path} is not the published file"):
        load_cifar100(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-100-python.tar.gz"]


def test_a_data_dir_that_is_a_file_is_named(tmp_path, archive):
    (tmp_path / "data").write_text("")
    with pytest.raises(InputError, match=r"data_dir is .*/data; it must be a directory that can be written"):
        load_cifar100(tmp_path / "data")


def test_a_file_too_large_to_be_the_published_one_is_refused_by_its_size(tmp_path, archive):
    miniature.write_miniature(tmp_path, num_classes=7)
    with (tmp_path / miniature.FOLDER / "train").open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(InputError, match="train: 1099511627776 bytes; it may have at most 268435456"):
        load_cifar100(tmp_path)


@pytest.mark.parametrize("kind", ["FIFO", "file for the folder", "directory for a file"])
def test_what_stands_in_the_place_of_the_images_is_replaced_or_named(tmp_path, original, archive, kind):
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(archive)
    folder = tmp_path / miniature.FOLDER
    if kind == "file for the folder":
        folder.write_text("")
    else:
        folder.mkdir()
        os.mkfifo(folder / "test") if kind == "FIFO" else (folder / "test").mkdir()
    if kind == "FIFO":
        assert_is_the_original(load_cifar100(tmp_path, download=False), original)
    else:
        with pytest.raises(InputError, match=f"CIFAR-100 cannot be moved into data_dir {tmp_path} ") as caught:
            load_cifar100(tmp_path, download=False)
        assert "\n" not in str(caught.value)


def test_images_are_found_by_name(tmp_path, original):
    assert has_cifar100_images(original)
    assert not has_cifar100_images(tmp_path / "none")
    (tmp_path / miniature.FOLDER).mkdir()
    (tmp_path / miniature.FOLDER / "train").write_text("")
    assert not has_cifar100_images(tmp_path)
    (tmp_path / "cifar-100-python.tar.gz").write_text("")
    assert has_cifar100_images(tmp_path)
