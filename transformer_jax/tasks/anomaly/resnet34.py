"""ResNet-34 as a function from images to features, and the file of its weights."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, UInt8

from transformer_jax.data.batch import pad_rows
from transformer_jax.data.downloads import download
from transformer_jax.outside_files import outside_file
from transformer_jax.trees import Variables

ACTIVATION = "block4_2"  # of the last block
MAX_BYTES = 2**28  # of the weights' file, which has 87 MB

Features = Callable[[np.ndarray], np.ndarray]  # from images [N, 32, 32, 3] to [N, 512]


def resnet34_features(data_dir: Path, resolution: int, batch_size: int) -> Features:
    """ResNet-34's last activation, averaged over height and width (He et al. 2016, implemented by flaxmodels).

    Images are resized bilinearly, scaled to [0, 1] and normalized with ImageNet's statistics.

    Args:
        data_dir: directory of the weights, see `weights_file`.
        resolution: R, the height and width in pixels to which images are resized.
        batch_size: number of images per pass through the network.

    Returns:
        A function from images `[N, 32, 32, 3]` to their features `[N, 512]`.

    Raises:
        InputError: the weights' file cannot be read.
    """
    from flaxmodels import ResNet34

    model = ResNet34(output="activations", pretrained="imagenet", normalize=True, ckpt_dir=str(data_dir))
    with outside_file(weights_file(data_dir), "flaxmodels' file of weights", MAX_BYTES):
        # Not compiled: the program would contain copies of the weights as constants. They do not
        # depend on the resolution; a small one initializes them quickly.
        variables = model.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False)

    @jax.jit
    def of_batch(variables: Variables, images: UInt8[Array, "B 32 32 3"]) -> Float[Array, "B 512"]:
        pixels = images.astype(jnp.float32) / 255
        pixels = jax.image.resize(pixels, (batch_size, resolution, resolution, 3), "bilinear")  # [B R R 3]
        activations: dict[str, Array] = model.apply(variables, pixels, train=False)
        return activations[ACTIVATION].mean(axis=(1, 2))  # [B 512]

    def features(images: UInt8[np.ndarray, "N 32 32 3"]) -> Float[np.ndarray, "N 512"]:
        starts = range(0, len(images), batch_size)
        batches = (pad_rows(images[start : start + batch_size], batch_size) for start in starts)  # one compilation
        return np.concatenate([of_batch(variables, batch) for batch in batches])[: len(images)]

    return features


def weights_file(data_dir: Path) -> Path:
    """Path where flaxmodels looks for the ImageNet weights if `data_dir` is its `ckpt_dir`."""
    return data_dir / "flaxmodels" / "resnet34_weights.h5"


def fetch_weights(data_dir: Path) -> None:
    """Download the ImageNet weights (87 MB) if they are not under `data_dir`.

    Raises:
        InputError: they cannot be downloaded; a failed download leaves no file.
    """
    from flaxmodels.resnet.resnet import URLS

    target = weights_file(data_dir)
    if not target.is_file():
        more = ", use existing features (--features-dir), or use --dataset digits, which needs no download"
        download(URLS["resnet34"], target, "ResNet-34's ImageNet weights", more=more, max_bytes=MAX_BYTES)
