"""Files of images: of one set, and of a whole data set in folders by class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, Num, UInt8

from transformer_jax.errors import InputError
from transformer_jax.outside_files import as_input_error, outside_file
from transformer_jax.tasks.anomaly.sets import Labels

MAX_PIXEL = 16  # of scikit-learn's digits
MIN_IMAGES = 2  # in a set
MAX_BYTES = 2**28  # of an image's file
# that Pillow reads without starting another program
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
KIND = f"an image ({', '.join(FORMATS)})"
SHAPE = (64, 64, 3)  # of an image in a picture


def read_images(paths: Sequence[str], shape: tuple[int, ...]) -> Num[np.ndarray, "S ..."]:
    """Read and resize images: to `[8, 8]`, light on dark, with pixels 0 … 16, or `[32, 32, 3]` with pixels 0 … 255.

    Grey images with a light border, such as ink on paper, are inverted.

    Raises:
        InputError: there are fewer than two images, or a file is damaged or not an image in one of `FORMATS`.
    """
    if len(paths) < MIN_IMAGES:
        raise InputError(f"inputs is {paths[0]}, one image; a set has at least {MIN_IMAGES}")
    pixels = np.stack([_read_image(path, shape) for path in paths])
    return pixels if len(shape) == 3 else pixels.astype(np.float32) * (MAX_PIXEL / 255)


class FolderImages:
    """Images in folders by class, in the order of torchvision's `ImageFolder`: by folder, then by file name.

    `images[rows]` reads those images from their files, resized to 64×64 pixels: `[*rows, 64, 64, 3]`. Files with other
    endings than `ImageFolder` knows, such as `.gif`, are left out.

    Args:
        directory: the folder of the folders.
        labels: class of each image in that order, to check that features and images belong together.

    Raises:
        InputError: the directory cannot be read or has a folder without images; or the images differ from the labels in
            number or in classes. On reading: a file is damaged or not an image in one of `FORMATS`.
    """

    def __init__(self, directory: Path, labels: Labels) -> None:
        from torchvision.datasets import ImageFolder

        with as_input_error(f"images is {directory}; it must have folders of images", OSError):
            folder = ImageFolder(directory)
        if len(folder.targets) != len(labels):
            raise InputError(
                f"{directory} has {len(folder.targets)} images; labels has {len(labels)}"
            )
        # [2 pairs], the folder and the class of each pair that occurs
        pairs = np.unique(np.stack([folder.targets, labels]), axis=1)
        if pairs.shape[1] != len(folder.classes) or len(set(pairs[1])) != len(folder.classes):
            raise InputError(
                f"labels does not give each folder of {directory}, in order of name, a class of"
                " its own"
            )
        self._samples = folder.samples  # path and class of each image

    def __getitem__(self, rows: Int[np.ndarray, "*S"]) -> UInt8[np.ndarray, "*S 64 64 3"]:
        pixels = np.stack([_read_image(self._samples[row][0], SHAPE) for row in rows.flat])
        return pixels.reshape(*rows.shape, *SHAPE)


def read_exactly(
    path: str | Path, shape: tuple[int, int, int]
) -> UInt8[np.ndarray, "height width 3"]:
    """Read an image that must have this shape.

    Raises:
        InputError: the file is damaged, not an image in one of `FORMATS`, or of another size.
    """
    image = _opened(path, "RGB")
    height, width, _ = shape
    if image.size != (width, height):
        raise InputError(
            f"{path} has {image.width}×{image.height} pixels; it must have {width}×{height}"
        )
    return np.asarray(image)


def _read_image(path: str, shape: tuple[int, ...]) -> UInt8[np.ndarray, "height width *rgb"]:
    from PIL import Image

    height, width, *rgb = shape
    image = _opened(path, "RGB" if rgb else "L")
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BOX))
    if rgb:
        return pixels
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    return 255 - pixels if border.mean() > 127 else pixels


def _opened(path: str | Path, mode: str) -> Any:  # an image of Pillow
    from PIL import Image

    with outside_file(path, KIND, MAX_BYTES) as file, Image.open(file, formats=FORMATS) as image:
        return image.convert(mode)
