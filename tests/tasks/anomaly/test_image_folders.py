"""CIFAR-100 from folders of PNG files, with features by a function of one's own: from files on disk to results."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import call
from PIL import Image

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly import network_features
from transformer_jax.tasks.anomaly.cifar100 import cifar100_table, load_folders

CLASSES = [f"class_{letter}" for letter in "cadbegfhij"]
FUNCTION = """
import numpy as np

def features(images):
    images = np.asarray(images)
    return np.concatenate([images.mean((1, 2)), images[:, 0, 0]], axis=1)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A hundred images of ten classes, each of which has a colour, and a function that computes features."""
    directory = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(3)
    colours = dict(zip(CLASSES, rng.integers(40, 216, size=(10, 3)), strict=True))
    for split, size in (("train", 7), ("test", 3)):
        for name, colour in colours.items():
            (directory / split / name).mkdir(parents=True)
            for number, noise in enumerate(rng.integers(-30, 31, size=(size, 32, 32, 3))):
                pixels = (colour + noise).astype(np.uint8)
                Image.fromarray(pixels).save(directory / split / name / f"kind_{number}.png")
    (directory / "network.py").write_text(FUNCTION)
    return directory


def pixels_of(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def test_classes_in_alphabetical_order_are_the_labels(folders):
    train, test = load_folders(folders)
    np.testing.assert_array_equal(train.labels, np.repeat(np.arange(10), 7))
    np.testing.assert_array_equal(test.labels, np.repeat(np.arange(10), 3))
    for row, path in ((0, "class_a/kind_0.png"), (8, "class_b/kind_1.png"), (69, "class_j/kind_6.png")):
        np.testing.assert_array_equal(train.images[row], pixels_of(folders / "train" / path))
    assert train.digest != test.digest


@pytest.mark.slow
def test_the_command_trains_on_features_of_the_images_which_it_computes_once(folders, tmp_path, capsys):
    arguments = [
        *("--dataset", "cifar100", "--images", folders, "--features-by", f"{folders}/network.py:features"),
        *("--resolution", 37, "--data-dir", tmp_path / "data", "--checkpoint-dir", tmp_path, "--set-size", 2),
        *("--max-epochs", 1, "--batch-size", 5, "--model-dim", 8, "--num-layers", 1, "--num-heads", 1, "--warmup", 3),
    ]
    outcome = call("anomaly.py", *arguments)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout.count("Computing") == 2
    results = json.loads((tmp_path / "SetAnomalyTask_cifar100" / "results.json").read_text())
    assert 0 <= results["test_acc"] <= 1
    assert (tmp_path / "SetAnomalyTask_cifar100" / "example_sets.png").is_file()

    table = cifar100_table(tmp_path / "data", None, 37, folders, f"{folders}/network.py:features")
    assert "Computing" not in capsys.readouterr().out
    images = np.concatenate([split.images for split in load_folders(folders)])
    enlarged = jax.image.resize(images.astype(np.float32) / 255, (100, 37, 37, 3), "bilinear")
    expected = np.concatenate([enlarged.mean((1, 2)), enlarged[:, 0, 0]], axis=1)
    np.testing.assert_allclose(table.features, expected, atol=1e-6)  # of pixels from 0 to 1
    assert [len(table.train), len(table.val), len(table.test)] == [60, 10, 30]
    assert sorted(table.labels[table.val]) == [*range(10)]
    assert len({row % 7 for row in table.val.tolist()}) > 1  # not the first file of each class


def test_an_interrupted_computation_continues_with_the_next_part(folders, tmp_path, monkeypatch):
    monkeypatch.setattr(network_features, "PART", 30)
    monkeypatch.setattr(network_features, "BATCH_SIZE", 15)
    images = load_folders(folders)[0].images
    calls: list[int] = []

    def network(batch):
        calls.append(len(batch))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return np.asarray(batch).mean((1, 2))

    path = tmp_path / "cache" / "features.npz"
    record = {"data": "d", "model": "m", "resolution": 32}
    for error in (KeyboardInterrupt, None):
        if error is None:
            found = network_features.cached_features(path, images, record, lambda: network)
        else:
            with pytest.raises(error):
                network_features.cached_features(path, images, record, lambda: network)
            assert not path.exists()
    assert calls == [15] * 7  # the first part's two batches, two more, then the five of the other parts but the first
    np.testing.assert_allclose(found, (images / 255).mean((1, 2)), atol=1e-5)  # sums of 1 024 in float32
    assert [entry.name for entry in path.parent.iterdir()] == ["features.npz"]


def test_features_of_another_function_are_computed_again(folders, tmp_path, capsys):
    def table_by(content: str) -> np.ndarray:
        (tmp_path / "own.py").write_text(content)
        return cifar100_table(tmp_path, None, 32, folders, f"{tmp_path}/own.py:features").features

    first = table_by(FUNCTION)
    other = table_by(FUNCTION.replace("images[:, 0, 0]", "images[:, 1, 1]"))
    assert "model was" in capsys.readouterr().out
    np.testing.assert_array_equal(first[:, :3], other[:, :3])
    assert np.abs(first[:, 3:] - other[:, 3:]).max() > 0.1


def damage(directory: Path, kind: str) -> None:
    match kind:
        case "no test":
            shutil.rmtree(directory / "test")
        case "a class is missing":
            shutil.rmtree(directory / "test" / "class_d")
        case "a class is empty":
            for path in (directory / "train" / "class_d").iterdir():
                path.unlink()
        case "a damaged file":
            (directory / "train" / "class_d" / "kind_2.png").write_bytes(b"\x89PNG no image")
        case "another size":
            Image.new("RGB", (31, 32)).save(directory / "train" / "class_d" / "kind_2.png")
        case "too few images":
            for number in range(1, 7):
                (directory / "train" / "class_d" / f"kind_{number}.png").unlink()


WRONG = {
    "no test": "it must have folders train/CLASS and test/CLASS of PNG files",
    "a class is missing": "must have the same classes, unlike class_d",
    "a class is empty": r"PNG files, unlike \w+ \(Found no valid file for the classes class_d",
    "a damaged file": "class_d/kind_2.png can't be read: UnidentifiedImageError",
    "another size": r"class_d/kind_2.png has 31×32 pixels; it must have 32×32",
    "too few images": "--set-size is 3; it may be at most 2, since class 3 has 1 images",
}


@pytest.mark.parametrize("kind", WRONG)
def test_folders_of_another_layout_are_an_error_in_one_line(folders, tmp_path, kind):
    directory = tmp_path / "images"
    shutil.copytree(folders, directory)
    damage(directory, kind)
    arguments = "--features-by", f"{directory}/network.py:features", "--resolution", 32, "--data-dir", tmp_path / "d"
    paths = "--images", directory, "--checkpoint-dir", tmp_path / "runs"
    outcome = call("anomaly.py", "--dataset", "cifar100", *paths, *arguments, "--set-size", 3)
    assert outcome.status == 2
    (line,) = outcome.stderr.splitlines()
    assert line.startswith("anomaly.py: error: ")
    with pytest.raises(InputError, match=WRONG[kind]):
        raise InputError(line)


@pytest.mark.parametrize(
    ("features_by", "message"),
    [
        ("resnet", "features_by is resnet; it must be resnet34, or FILE.py:FUNCTION"),
        ("nowhere.py:features", r"features_by is nowhere.py:features; it must be .*No such file"),
        ("network.py:nothing", r"features_by is .*network.py:nothing; it must be .*has no attribute 'nothing'"),
    ],
)
def test_what_is_no_function_is_an_error(folders, tmp_path, monkeypatch, features_by, message):
    from transformer_jax.tasks.anomaly.task import Cifar100Config

    monkeypatch.chdir(folders)
    with pytest.raises(InputError, match=message):
        Cifar100Config(images=folders, features_by=features_by, data_dir=tmp_path).table()


def test_a_function_that_returns_other_than_a_row_for_each_image_is_an_error(folders):
    images = load_folders(folders)[1].images
    with pytest.raises(InputError, match=r"features_by returns shape \(64, 32, 32, 3\) for 64 images"):
        network_features.features_by(lambda batch: batch, images, 32)
