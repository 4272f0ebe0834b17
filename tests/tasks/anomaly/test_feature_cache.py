"""What makes the cache of features be made anew, and what is said before that; with a network that costs nothing."""

import hashlib
import re
import shutil

import jax
import miniature_cifar100 as miniature
import numpy as np
import pytest

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly import features as image_features
from transformer_jax.tasks.anomaly.feature_cache import FeatureFile
from transformer_jax.tasks.anomaly.features import cifar100_features
from transformer_jax.tasks.anomaly.resnet34 import ResNet34Features

SETTINGS = {"batch_size": 37, "shard_size": 101, "pretrained": None, "download": False}
NAMES = ["test_set_features.npz", "train_set_features.npz"]


class Pixels(ResNet34Features):
    """In the network's place where the network is not the point: features that are an image's first numbers."""

    def __init__(self, *_, resolution, batch_size):
        self.batch_size = batch_size

    def __call__(self, images):
        for start in range(0, len(images), self.batch_size):
            yield images[start : start + self.batch_size].reshape(-1, 3072)[:, :512].astype(np.float32)

    def seconds_per_batch(self, images):
        assert len(images) == min(7, 2 * self.batch_size)
        return 300.0


@pytest.fixture
def pixels(monkeypatch):
    monkeypatch.setattr(image_features, "ResNet34Features", Pixels)


@pytest.fixture
def few_images(tmp_path, monkeypatch):
    """Seven images to train and seven to test, without features."""
    miniature.write_miniature(tmp_path / "few", num_classes=7, train_per_class=1)
    miniature.accept(monkeypatch, tmp_path / "few")
    return tmp_path / "few"


def assert_equal(splits, expected):
    for split, other in zip(splits, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, split, other)


def test_other_weights_rebuild_the_cache_and_missing_ones_do_not(few_images, capsys, pixels):
    settings = {**SETTINGS, "pretrained": "imagenet"}
    weights = few_images / "flaxmodels" / "resnet34_weights.h5"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    first = cifar100_features(few_images, **settings)
    old, new = (hashlib.sha256(content).hexdigest() for content in (b"one", b"two"))
    capsys.readouterr()
    weights.unlink()
    assert_equal(cifar100_features(few_images, **settings), first)
    assert capsys.readouterr().out == ""
    weights.write_bytes(b"two")
    cifar100_features(few_images, **settings)
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        assert f"Rebuilding {few_images}/cifar100_features/{name}: weights was {old} and is now {new}." in lines


def test_only_the_split_whose_images_differ_is_made_anew(few_images, tmp_path, monkeypatch, capsys, pixels):
    first = cifar100_features(few_images, **SETTINGS)
    capsys.readouterr()
    miniature.write_miniature(tmp_path / "other", num_classes=7, train_per_class=1, seed=1)
    shutil.copy(tmp_path / "other" / miniature.FOLDER / "test", few_images / miniature.FOLDER / "test")
    miniature.accept(monkeypatch, few_images)
    train, test = cifar100_features(few_images, **SETTINGS)
    line = capsys.readouterr().out.splitlines()[0]
    path = few_images / "cifar100_features" / "test_set_features.npz"
    assert re.fullmatch(rf"Rebuilding {path}: data was \w{{32}} and is now \w{{32}}\.", line)
    assert_equal([train], first[:1])
    np.testing.assert_array_equal(test.features, test.images.reshape(7, 3072)[:, :512])
    assert not np.array_equal(test.images, first[1].images)


def test_on_a_cpu_the_duration_is_said_beforehand_and_how_to_avoid_it(few_images, monkeypatch, capsys, pixels):
    settings = {**SETTINGS, "batch_size": 2, "shard_size": 5}
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    cifar100_features(few_images, **settings)
    assert capsys.readouterr().out == ""
    shutil.rmtree(few_images / "cifar100_features")
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    cifar100_features(few_images, **settings)
    (line,) = capsys.readouterr().out.splitlines()
    # Each split of 7 images is a shard of 3 batches and one of 1, and a batch takes 300 seconds.
    assert line == (
        "Extracting the features takes about 40 min on this CPU, measured on the first batches. If interrupted, it "
        "continues when started again. Faster: a GPU; ready files (--features-dir); the digits (--dataset digits)."
    )


def test_where_only_the_joining_is_left_nothing_is_measured_or_computed(few_images, monkeypatch, capsys, pixels):
    join = FeatureFile.join

    def join_train_alone(self):
        if self.path.name == "test_set_features.npz":
            raise KeyboardInterrupt
        join(self)

    with monkeypatch.context() as patch:
        patch.setattr(FeatureFile, "join", join_train_alone)
        with pytest.raises(KeyboardInterrupt):
            cifar100_features(few_images, **SETTINGS)
    capsys.readouterr()
    monkeypatch.setattr(Pixels, "__call__", lambda *_: pytest.fail("computed"))
    monkeypatch.setattr(Pixels, "seconds_per_batch", lambda *_: pytest.fail("measured"))
    _, test = cifar100_features(few_images, **SETTINGS)
    np.testing.assert_array_equal(test.features, test.images.reshape(7, 3072)[:, :512])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("test_set_features.npz with the last 0 of 7 images.")


def test_a_directory_that_cannot_be_written_is_named(few_images, pixels):
    (few_images / "cifar100_features").write_text("a file where the directory belongs")
    with pytest.raises(InputError, match=rf"data_dir is {few_images}; it must be a directory that can be written"):
        cifar100_features(few_images, **SETTINGS)
