"""CIFAR-100's features: the numbers that PyTorch computes, kept through interruptions, made anew when outdated."""

import hashlib
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import jax
import miniature_cifar100 as miniature
import numpy as np
import pytest
import torch
import torchvision
from flaxmodels.resnet.resnet import URLS
from local_server import UNREACHABLE, serve
from torchvision.datasets import CIFAR100

from transformer_jax.errors import InputError
from transformer_jax.tasks import image_features
from transformer_jax.tasks.image_features import cifar100_features, has_cifar100
from transformer_jax.tasks.resnet34 import ResNet34Features

SETTINGS = {"resolution": 16, "batch_size": 37, "shard_size": 101, "pretrained": None, "download": False}
NAMES = ["test_set_features.npz", "train_set_features.npz"]

KILLED_AT_THE_THIRD_SHARD = """
import os, signal, sys
from pathlib import Path
import miniature_cifar100
from torchvision.datasets import CIFAR100
from transformer_jax.tasks.image_features import cifar100_features

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
cifar100_features(data_dir, **eval(sys.argv[2]))
"""


def accept(monkeypatch, data_dir: Path) -> Path:
    """Let torchvision take a miniature for the published data set, and nothing reach the network."""
    for name, value in miniature.torchvision_digests(data_dir).items():
        monkeypatch.setattr(CIFAR100, name, value)
    monkeypatch.setattr(CIFAR100, "url", f"{UNREACHABLE}/cifar-100-python.tar.gz")
    monkeypatch.setitem(URLS, "resnet34", f"{UNREACHABLE}/resnet34_weights.h5?dl=1")
    return data_dir


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A directory with a hundred classes of three and of one image, and their features at 16 pixels."""
    data_dir = tmp_path_factory.mktemp("uninterrupted")
    miniature.write_miniature(data_dir)
    with pytest.MonkeyPatch.context() as monkeypatch:
        accept(monkeypatch, data_dir)
        return data_dir, cifar100_features(data_dir, **SETTINGS)


@pytest.fixture
def data_dir(uninterrupted, tmp_path, monkeypatch):
    """A copy of that directory."""
    shutil.copytree(uninterrupted[0], tmp_path / "data")
    return accept(monkeypatch, tmp_path / "data")


@pytest.fixture
def few_images(tmp_path, monkeypatch):
    """Seven images to train and seven to test, without features."""
    miniature.write_miniature(tmp_path / "few", num_classes=7, train_per_class=1)
    return accept(monkeypatch, tmp_path / "few")


@pytest.fixture
def no_network_runs(monkeypatch):
    monkeypatch.setattr(ResNet34Features, "__init__", lambda *_, **__: pytest.fail("the network was used"))


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


def assert_equal(splits, expected):
    for split, other in zip(splits, expected, strict=True):
        jax.tree.map(np.testing.assert_array_equal, split, other)


def cache_bytes(data_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (data_dir / "cifar100_features").iterdir()}


@pytest.fixture(scope="module")
def resnet34():
    """PyTorch's network with random weights and statistics, and its weights in the format of flaxmodels' file."""
    torch.manual_seed(3)
    model = torchvision.models.resnet34(weights=None).eval()
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.uniform_(0.5, 1.5)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, -0.5, 1.0)
    return model, published_weights(model)


def published_weights(model) -> bytes:
    names = {"running_mean": "mean", "running_var": "var", "bias": "bias"}
    with h5py.File("weights", "w", driver="core", backing_store=False) as file:
        for key, value in model.state_dict().items():
            *path, kind = (
                re.sub(r"(layer\d)\.(\d)", r"\1.block\2", key)
                .replace("downsample.0", "downsample.conv")
                .replace("downsample.1", "downsample.bn")
                .split(".")
            )
            if kind == "num_batches_tracked":
                continue
            if kind == "weight" and value.ndim == 1:
                kind = "scale"
            array = value.numpy()
            array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T  # [kh kw in out] and [in out]
            file["/".join([*path, names.get(kind, kind)])] = array
        file.flush()
        return file.id.get_file_image()


def features_by_pytorch(model, images, resolution: int) -> np.ndarray:
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    pixels = torch.nn.functional.interpolate(
        pixels, size=(resolution, resolution), mode="bilinear", align_corners=False
    )
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    backbone = torch.nn.Sequential(*list(model.children())[:-2])
    with torch.no_grad():
        return backbone((pixels - mean[:, None, None]) / std[:, None, None]).mean((2, 3)).numpy()


def test_features_are_those_of_pytorchs_resnet34_with_downloaded_weights(few_images, resnet34, monkeypatch, capsys):
    model, weights = resnet34
    settings = {"resolution": 71, "batch_size": 3, "shard_size": 5}
    with serve({"/resnet34_weights.h5": weights}) as (url, requests):
        monkeypatch.setitem(URLS, "resnet34", f"{url}/resnet34_weights.h5?dl=1")
        splits = cifar100_features(few_images, **settings)
    assert requests == ["/resnet34_weights.h5"]
    for split in splits:
        expected = features_by_pytorch(model, split.images, 71)
        assert expected.std() > 0.1
        np.testing.assert_allclose(split.features, expected, atol=2e-4 * expected.std())
    assert sorted(path.name for path in few_images.iterdir()) == ["cifar-100-python", "cifar100_features", "flaxmodels"]
    # The file lies where it can be put by hand. A finished cache serves with it, and without it.
    for path in (few_images / "flaxmodels" / "resnet34_weights.h5", None):
        if path is None:
            shutil.rmtree(few_images / "flaxmodels")
        else:
            assert hashlib.sha256(path.read_bytes()).digest() == hashlib.sha256(weights).digest()
        assert_equal(cifar100_features(few_images, download=False, **settings), splits)


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


def test_a_finished_cache_is_used(data_dir, uninterrupted, no_network_runs, capsys):
    before = cache_bytes(data_dir)
    assert_equal(cifar100_features(data_dir, **SETTINGS), uninterrupted[1])
    assert cache_bytes(data_dir) == before
    assert capsys.readouterr().out == ""


def test_a_killed_extraction_continues_and_ends_in_the_same_bytes(data_dir, uninterrupted, capsys, monkeypatch):
    expected = cache_bytes(data_dir)
    shutil.rmtree(data_dir / "cifar100_features")
    child = [sys.executable, "-c", KILLED_AT_THE_THIRD_SHARD, str(data_dir), repr(SETTINGS)]
    tests = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", tests, prepend=":")
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


def test_another_resolution_rebuilds_the_cache(data_dir, uninterrupted, capsys):
    splits = cifar100_features(data_dir, **{**SETTINGS, "resolution": 13})
    lines = capsys.readouterr().out.splitlines()
    for line, name in zip(lines, ("train_set_features.npz", "test_set_features.npz"), strict=False):
        assert line == f"Rebuilding {data_dir}/cifar100_features/{name}: resolution was 16 and is now 13."
    for split, before in zip(splits, uninterrupted[1], strict=True):
        assert split.features.shape == before.features.shape
        assert np.abs(split.features - before.features).max() > 0.1
    assert sorted(cache_bytes(data_dir)) == NAMES


def test_only_the_split_whose_images_differ_is_made_anew(few_images, tmp_path, monkeypatch, capsys, pixels):
    first = cifar100_features(few_images, **SETTINGS)
    capsys.readouterr()
    miniature.write_miniature(tmp_path / "other", num_classes=7, train_per_class=1, seed=1)
    shutil.copy(tmp_path / "other" / miniature.FOLDER / "test", few_images / miniature.FOLDER / "test")
    accept(monkeypatch, few_images)
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
        "Extracting the features takes about 40 min on this CPU, measured on the first batches; it may be interrupted, "
        "and continues when started again. Faster: a GPU; ready files (--features-dir); the digits (--dataset digits)."
    )


def ready_files(directory: Path, num_train: int = 300, num_test: int = 100) -> Path:
    directory.mkdir()
    rng = np.random.default_rng(0)
    for name, size in (("train", num_train), ("test", num_test)):
        np.savez(directory / f"{name}_set_features.npz", feats=rng.normal(size=(size, 512)).astype(np.float32))
    return directory


def test_the_tutorials_files_are_taken_as_they_are(data_dir, tmp_path, no_network_runs):
    features_dir = ready_files(tmp_path / "ready")
    train, test = cifar100_features(data_dir, features_dir, download=False)
    for split, name in ((train, "train"), (test, "test")):
        np.testing.assert_array_equal(split.features, np.load(features_dir / f"{name}_set_features.npz")["feats"])
        assert len(split.labels) == len(split.images) == len(split.features)
    assert sorted(path.name for path in data_dir.iterdir()) == ["cifar-100-python", "cifar100_features"]


def test_a_cache_of_another_machine_is_taken_if_it_is_of_the_same_kind(
    data_dir, tmp_path, uninterrupted, no_network_runs
):
    features_dir = (data_dir / "cifar100_features").rename(tmp_path / "ready")
    assert_equal(cifar100_features(data_dir, features_dir, **SETTINGS), uninterrupted[1])
    with pytest.raises(InputError, match=r"train_set_features.npz cannot be used: resolution was 16 and is now 224"):
        cifar100_features(data_dir, features_dir, **{**SETTINGS, "resolution": 224})


@pytest.mark.parametrize("sizes", [(299, 100), (300, 101)])
def test_ready_files_must_have_a_row_for_each_image(data_dir, tmp_path, sizes):
    message = "299 rows; it must have 300" if sizes[0] == 299 else "101 rows; it must have 100"
    with pytest.raises(InputError, match=message):
        cifar100_features(data_dir, ready_files(tmp_path / "ready", *sizes), download=False)


def test_a_damaged_ready_file_is_refused_before_any_download(tmp_path, few_images):
    features_dir = ready_files(tmp_path / "ready")
    (features_dir / "test_set_features.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"test_set_features.npz must be an .npz of plain arrays"):
        cifar100_features(tmp_path / "empty", features_dir)


@pytest.mark.parametrize("failure", ["unreachable", "not found", "cut off", "other content", "not asked"])
def test_weights_that_cannot_be_had_say_what_to_do_and_leave_nothing(few_images, monkeypatch, failure):
    before = sorted(few_images.rglob("*"))
    weights = bytes(100_000)
    pages = {"cut off": {"/w.h5": (weights, 5000)}, "other content": {"/w.h5": weights}}.get(failure, {})
    with serve(pages) as (url, requests):
        if failure != "unreachable":
            monkeypatch.setitem(URLS, "resnet34", f"{url}/w.h5?dl=1")
        settings = {**SETTINGS, "pretrained": "imagenet", "download": failure != "not asked"}
        with pytest.raises(InputError, match=r"^ResNet-34's ImageNet weights ") as caught:
            cifar100_features(few_images, **settings)
        assert (len(requests) > 0) == (failure not in ("unreachable", "not asked"))
    for advice in (
        f"put them at {few_images}/flaxmodels/resnet34_weights.h5 by hand",
        "--features-dir",
        "--dataset digits",
        URLS["resnet34"],
    ):
        assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
    assert sorted(few_images.rglob("*")) == before


def test_damaged_weights_are_named(few_images):
    path = few_images / "flaxmodels" / "resnet34_weights.h5"
    path.parent.mkdir()
    for damage in ("content", "names"):
        if damage == "content":
            path.write_bytes(b"no HDF5")
        else:
            h5py.File(path, "w").close()
        with pytest.raises(InputError, match=rf"{path} must hold flaxmodels' weights of ResNet-34 \(.*remove the file"):
            cifar100_features(few_images, **{**SETTINGS, "pretrained": "imagenet"})


def test_a_directory_that_cannot_be_written_is_named(few_images):
    (few_images / "cifar100_features").write_text("a file where the directory belongs")
    with pytest.raises(InputError, match=rf"data_dir is {few_images}; it must be a directory that can be written"):
        cifar100_features(few_images, **SETTINGS)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"resolution": 0}, "resolution is 0; it must be at least 1"),
        ({"batch_size": -1}, "batch_size is -1; it must be at least 1"),
        ({"shard_size": 0}, "shard_size is 0; it must be at least 1"),
        ({"pretrained": "cifar"}, "pretrained is 'cifar'; it may be 'imagenet' or None"),
    ],
)
def test_arguments_that_cannot_work_are_named(few_images, setting, message):
    with pytest.raises(InputError, match=message):
        cifar100_features(few_images, **{**SETTINGS, **setting})


def test_images_or_finished_features_are_found(tmp_path, few_images):
    assert not has_cifar100(tmp_path / "none")
    assert has_cifar100(few_images)
    cache = tmp_path / image_features.CACHE
    cache.mkdir()
    (cache / "train_set_features.npz").write_text("")
    assert not has_cifar100(tmp_path)
    (cache / "test_set_features.npz").write_text("")
    assert has_cifar100(tmp_path)
