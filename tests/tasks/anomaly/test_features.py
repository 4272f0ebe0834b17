"""CIFAR-100's features: in order, kept through interruptions, made anew when outdated, or taken from ready files."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import miniature_cifar100 as miniature
import numpy as np
import pytest
from made_once import made_once
from repository import REPOSITORY

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly import features as image_features
from transformer_jax.tasks.anomaly.features import cifar100_features, has_cifar100
from transformer_jax.tasks.anomaly.resnet34 import ResNet34Features

SETTINGS = {"resolution": 16, "batch_size": 37, "shard_size": 101, "pretrained": None, "download": False}
NAMES = ["test_set_features.npz", "train_set_features.npz"]

KILLED_AT_THE_THIRD_SHARD = """
import json, os, signal, sys
from pathlib import Path
import miniature_cifar100
from torchvision.datasets import CIFAR100
from transformer_jax.tasks.anomaly.features import cifar100_features

data_dir = Path(sys.argv[1])
for name, value in miniature_cifar100.torchvision_digests(data_dir).items():
    setattr(CIFAR100, name, value)
rename, renamed = Path.replace, []

def replace(path, target):
    if len(renamed) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    renamed.append(target)
    return rename(path, target)

Path.replace = replace
cifar100_features(data_dir, **json.loads(sys.argv[2]))
"""


@pytest.fixture(scope="module", autouse=True)
def on_the_cpu():
    """A GPU may choose other algorithms in another process, whose results differ in their last bits."""
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, on_the_cpu):
    """A directory with a hundred classes of three and of one image, and their features at 16 pixels."""

    def extract(data_dir: Path) -> None:
        miniature.write_miniature(data_dir)
        with pytest.MonkeyPatch.context() as monkeypatch:
            miniature.accept(monkeypatch, data_dir)
            cifar100_features(data_dir, **SETTINGS)

    data_dir = made_once(tmp_path_factory, "features", extract)
    with pytest.MonkeyPatch.context() as monkeypatch:
        miniature.accept(monkeypatch, data_dir)
        return data_dir, cifar100_features(data_dir, **SETTINGS)


@pytest.fixture
def images_alone(tmp_path, monkeypatch):
    """A directory with the same images, without features."""
    miniature.write_miniature(tmp_path / "images")
    miniature.accept(monkeypatch, tmp_path / "images")
    return tmp_path / "images"


@pytest.fixture
def data_dir(uninterrupted, tmp_path, monkeypatch):
    """A copy of that directory."""
    shutil.copytree(uninterrupted[0], tmp_path / "data")
    miniature.accept(monkeypatch, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def no_network_runs(monkeypatch):
    monkeypatch.setattr(ResNet34Features, "__init__", lambda *_, **__: pytest.fail("the network was used"))


def assert_equal(splits, expected):
    for split, other in zip(splits, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, split, other)


def cache_bytes(data_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data_dir / "cifar100_features").iterdir()}


@pytest.mark.slow
def test_the_result_is_one_row_for_each_image_in_order(uninterrupted):
    data_dir, (train, test) = uninterrupted
    for split, size in ((train, 300), (test, 100)):
        assert split.features.shape == (size, 512)
        assert split.features.dtype == np.float32
        assert split.images.shape == (size, 32, 32, 3)
        assert np.bincount(split.labels).tolist() == [size // 100] * 100
    extractor = ResNet34Features(data_dir, None, resolution=16, batch_size=5)
    batches = list(extractor(train.images[198:211]))  # across the border of two shards
    assert [len(batch) for batch in batches] == [5, 5, 3]
    assert extractor.num_compilations == 1
    np.testing.assert_allclose(np.concatenate(batches), train.features[198:211], atol=1e-4)
    assert np.ptp(train.features, axis=0).mean() > 0.1


@pytest.mark.slow
def test_the_cache_is_the_tutorials_file_with_a_record(uninterrupted):
    data_dir, (train, _) = uninterrupted
    assert sorted(cache_bytes(data_dir)) == NAMES
    with np.load(data_dir / "cifar100_features" / "train_set_features.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["feats"], train.features)
        digest = hashlib.md5((data_dir / miniature.FOLDER / "train").read_bytes()).hexdigest()
        assert str(file["provenance"]) == (
            f'{{"data": "{digest}", "model": "flaxmodels.ResNet34 random block4_2 averaged", '
            '"weights": "random", "resolution": 16}'
        )


@pytest.mark.slow
def test_a_finished_cache_is_used(data_dir, uninterrupted, no_network_runs, capsys):
    before = cache_bytes(data_dir)
    assert_equal(cifar100_features(data_dir, **SETTINGS), uninterrupted[1])
    assert cache_bytes(data_dir) == before
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_a_killed_extraction_continues_and_ends_in_the_same_bytes(data_dir, uninterrupted, capsys, monkeypatch):
    expected = cache_bytes(data_dir)
    shutil.rmtree(data_dir / "cifar100_features")
    child = [sys.executable, "-c", KILLED_AT_THE_THIRD_SHARD, str(data_dir), json.dumps(SETTINGS)]
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "tests"), prepend=":")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert subprocess.run(child, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    shards = data_dir / "cifar100_features" / "train_set_features.parts"
    left = sorted(path.name for path in shards.iterdir())
    assert left == ["000000-000101.npy", "000101-000202.npy", "provenance.json", "shard.tmp"]

    extracted = []
    extract = ResNet34Features.__call__

    def recording(self, images):
        extracted.append(len(images))
        return extract(self, images)

    monkeypatch.setattr(ResNet34Features, "__call__", recording)
    monkeypatch.setattr(ResNet34Features, "seconds_per_batch", lambda *_: 1.0)
    assert_equal(cifar100_features(data_dir, **SETTINGS), uninterrupted[1])
    assert extracted == [98, 100]  # the third shard of the training set, and the test set
    assert cache_bytes(data_dir) == expected
    out = capsys.readouterr().out
    assert f"Continuing {data_dir}/cifar100_features/train_set_features.npz with the last 98 of 300 images." in out


@pytest.mark.slow
def test_another_resolution_rebuilds_the_cache(data_dir, uninterrupted, capsys):
    splits = cifar100_features(data_dir, **{**SETTINGS, "resolution": 13})
    lines = capsys.readouterr().out.splitlines()
    for name in NAMES:
        assert f"Rebuilding {data_dir}/cifar100_features/{name}: resolution was 16 and is now 13." in lines
    for split, before in zip(splits, uninterrupted[1], strict=True):
        assert split.features.shape == before.features.shape
        assert np.abs(split.features - before.features).max() > 0.1
    assert sorted(cache_bytes(data_dir)) == NAMES


def ready_files(directory: Path, num_train: int = 300, num_test: int = 100) -> Path:
    directory.mkdir()
    rng = np.random.default_rng(0)
    for name, size in (("train", num_train), ("test", num_test)):
        np.savez(directory / f"{name}_set_features.npz", feats=rng.normal(size=(size, 512)).astype(np.float32))
    return directory


def test_the_tutorials_files_are_taken_as_they_are(images_alone, tmp_path, no_network_runs):
    features_dir = ready_files(tmp_path / "ready")
    train, test = cifar100_features(images_alone, features_dir, download=False)
    for split, name in ((train, "train"), (test, "test")):
        np.testing.assert_array_equal(split.features, np.load(features_dir / f"{name}_set_features.npz")["feats"])
        assert len(split.labels) == len(split.images) == len(split.features)
    assert [path.name for path in images_alone.iterdir()] == ["cifar-100-python"]


@pytest.mark.slow
def test_a_cache_of_another_machine_is_taken_if_it_is_of_the_same_kind(
    data_dir, tmp_path, uninterrupted, no_network_runs
):
    features_dir = (data_dir / "cifar100_features").rename(tmp_path / "ready")
    assert_equal(cifar100_features(data_dir, features_dir, **SETTINGS), uninterrupted[1])
    with pytest.raises(InputError, match=r"train_set_features.npz cannot be used: resolution was 16 and is now 224"):
        cifar100_features(data_dir, features_dir, **{**SETTINGS, "resolution": 224})


@pytest.mark.parametrize("sizes", [(299, 100), (300, 101)])
def test_ready_files_must_have_a_row_for_each_image(images_alone, tmp_path, sizes):
    message = "299 rows; it must have 300" if sizes[0] == 299 else "101 rows; it must have 100"
    with pytest.raises(InputError, match=message):
        cifar100_features(images_alone, ready_files(tmp_path / "ready", *sizes), download=False)


def test_a_damaged_ready_file_is_refused_before_any_download(tmp_path):
    features_dir = ready_files(tmp_path / "ready")
    (features_dir / "test_set_features.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"test_set_features.npz must be an .npz of plain arrays"):
        cifar100_features(tmp_path / "empty", features_dir)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"resolution": 0}, "resolution is 0; it must be at least 1"),
        ({"batch_size": -1}, "batch_size is -1; it must be at least 1"),
        ({"shard_size": 0}, "shard_size is 0; it must be at least 1"),
        ({"pretrained": "cifar"}, "pretrained is 'cifar'; it may be 'imagenet' or None"),
    ],
)
def test_arguments_that_cannot_work_are_named(tmp_path, setting, message):
    with pytest.raises(InputError, match=message):
        cifar100_features(tmp_path, **{**SETTINGS, **setting})


def test_images_or_finished_features_are_found(tmp_path, images_alone):
    assert not has_cifar100(tmp_path / "none")
    assert has_cifar100(images_alone)
    cache = tmp_path / image_features.CACHE
    cache.mkdir()
    (cache / "train_set_features.npz").write_text("")
    assert not has_cifar100(tmp_path)
    (cache / "test_set_features.npz").write_text("")
    assert has_cifar100(tmp_path)
