"""Files of images: supported formats, one-line errors for all others, and folders of images by class."""

import io

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from transformer_jax import InputError, load_run
from transformer_jax.tasks.anomaly.images import FORMATS, FolderImages, read_images
from transformer_jax.tasks.anomaly.task import FilesConfig, report, train_anomaly


def image(name: str) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (16, 16), 7).save(buffer, name)
    return buffer.getvalue()


WRONG = {  # of some of them Pillow raises neither OSError nor ValueError
    "damaged.avif": b"\0\0\0\x1cftypavif" + bytes(50),
    "damaged.dds": b"DDS \x7c" + bytes(140),
    "damaged.png": image("PNG")[:40],
    "flipped.png": image("PNG").replace(b"IDAT", b"IDAX"),
    "drawing.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\n",  # Ghostscript's
    "text.png": b"no image",
}


@pytest.mark.parametrize("name", FORMATS)
def test_these_formats_are_read(tmp_path, name):
    (tmp_path / "image").write_bytes(image(name))
    assert read_images([str(tmp_path / "image")] * 2, (8, 8)).shape == (2, 8, 8)


@pytest.mark.parametrize("name", [*WRONG, "missing.png"])
def test_others_and_damaged_ones_are_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("another program was started"))
    path = tmp_path / name
    if name in WRONG:
        path.write_bytes(WRONG[name])
    with pytest.raises(InputError) as caught:
        read_images([str(path)] * 2, (8, 8))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


LABELS = np.repeat([4, 9, 2], 20)  # of the folders ant, bee and cat


def write_folders(directory) -> np.ndarray:
    """Write images of one colour each in folders by class, in another order than that of their names; the colours."""
    colours = np.random.default_rng(0).integers(0, 256, (60, 3), np.uint8)
    for number in np.random.default_rng(1).permutation(60):
        path = directory / ("ant", "bee", "cat")[number // 20] / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.broadcast_to(colours[number], (40, 30 + number, 3))).save(path)
    return colours


def test_rows_of_folders_are_read_in_the_order_of_their_names(tmp_path):
    colours = write_folders(tmp_path)
    rows = np.array([[59, 0], [20, 19]])
    pixels = FolderImages(tmp_path, LABELS)[rows]
    assert (pixels.shape, pixels.dtype) == ((2, 2, 64, 64, 3), np.uint8)
    np.testing.assert_array_equal(pixels, np.broadcast_to(colours[rows][:, :, None, None], pixels.shape))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (LABELS[1:], "has 60 images; labels has 59"),
        (np.roll(LABELS, 1), "labels does not give each folder of .*, in order of name, a class of its own"),
        (np.minimum(LABELS, 4), "labels does not give each folder of"),
    ],
)
def test_folders_that_are_not_those_of_the_labels_are_refused(tmp_path, labels, message):
    write_folders(tmp_path)
    with pytest.raises(InputError, match=message):
        FolderImages(tmp_path, labels)


def test_a_directory_without_folders_of_images_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for directory in (tmp_path / "missing", tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="it must have folders of images"):
            FolderImages(directory, LABELS)
    (tmp_path / "ant").mkdir()
    with pytest.raises(InputError, match="it must have folders of images .Found no valid file for the classes ant"):
        FolderImages(tmp_path, LABELS)


@pytest.mark.slow
def test_pictures_and_examples_show_the_images_of_the_features(tmp_path, capsys):
    colours = write_folders(tmp_path / "images")
    np.save(tmp_path / "features.npy", colours / 255)
    np.save(tmp_path / "labels.npy", LABELS)
    trainer, _ = train_anomaly(
        FilesConfig(
            features=tmp_path / "features.npy",
            labels=tmp_path / "labels.npy",
            images=tmp_path / "images",
            set_size=3,
            model_dim=12,
            batch_size=8,
            warmup=3,
            max_epochs=1,
            checkpoint_dir=tmp_path,
        )
    )
    pictures = {path.name for path in (tmp_path / "SetAnomalyTask_files").glob("*.png")}
    assert "example_sets.png" in pictures
    assert pictures & {"right_prediction.png", "wrong_prediction.png"}
    (example,) = trainer.test_examples([1])
    np.testing.assert_allclose(example.pixels()[:, 0, 0] / 255, example.inputs[0], atol=1e-6)
    (opened,) = load_run(tmp_path / "SetAnomalyTask_files").test_examples([1])
    np.testing.assert_array_equal(opened.pixels(), example.pixels())
    for path in (tmp_path / "images").glob("*/*"):
        path.write_bytes(b"no image")
    capsys.readouterr()
    assert report(trainer, trainer.test_data)["dataset"] == "files"
    assert "No pictures of sets: " in capsys.readouterr().out
