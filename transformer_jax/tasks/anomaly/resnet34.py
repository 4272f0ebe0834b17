"""ResNet-34 as a function from images to features, and the file of its weights."""

import contextlib
import hashlib
import http.client
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, UInt8

from transformer_jax.data.batch import pad_rows
from transformer_jax.data.downloads import download, in_one_line
from transformer_jax.errors import InputError
from transformer_jax.outside_files import outside_file
from transformer_jax.trees import Variables

ACTIVATION = "block4_2"  # the last block's
MAX_BYTES = 2**28  # of the weights' file, which has 87 MB
TIMEOUT = 60.0  # seconds to wait for an answer


class ResNet34Features:
    """Activation of the last block, averaged over height and width (He et al. 2016, implemented by flaxmodels).

    Images are resized bilinearly, scaled to [0, 1] and normalized with ImageNet's statistics.

    Args:
        data_dir: directory of the weights, see `weights_file`.
        pretrained: "imagenet" for the published weights, None for random ones from a fixed key.
        resolution: R, the height and width in pixels to which images are resized.
        batch_size: images that go through the network at once.

    Raises:
        InputError: the weights' file cannot be read.
    """

    def __init__(self, data_dir: Path, pretrained: str | None, *, resolution: int, batch_size: int) -> None:
        from flaxmodels import ResNet34

        self.batch_size = batch_size
        model = ResNet34(output="activations", pretrained=pretrained, normalize=True, ckpt_dir=str(data_dir))

        init = jax.jit(model.init, static_argnames="train")
        file = weights_file(data_dir)
        with outside_file(file, "flaxmodels' file of weights", MAX_BYTES) if pretrained else contextlib.nullcontext():
            # The weights do not depend on the resolution; a small one initializes them quickly.
            self._variables: Variables = init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False)

        @jax.jit
        def features(variables: Variables, images: UInt8[Array, "B 32 32 3"]) -> Float[Array, "B 512"]:
            pixels = images.astype(jnp.float32) / 255
            pixels = jax.image.resize(pixels, (batch_size, resolution, resolution, 3), "bilinear")  # [B R R 3]
            activations: dict[str, Array] = model.apply(variables, pixels, train=False)
            return activations[ACTIVATION].mean(axis=(1, 2))  # [B 512]

        self._features = features

    def __call__(self, images: UInt8[np.ndarray, "N 32 32 3"]) -> Iterator[Float[np.ndarray, "B 512"]]:
        """Features of the images in order, one batch after another; the last one may be shorter."""
        for start in range(0, len(images), self.batch_size):
            batch = images[start : start + self.batch_size]
            # One shape, one compilation.
            yield np.asarray(self._features(self._variables, pad_rows(batch, self.batch_size)))[: len(batch)]


def weights_file(data_dir: Path) -> Path:
    """Path where flaxmodels looks for the ImageNet weights if `data_dir` is its `ckpt_dir`."""
    return data_dir / "flaxmodels" / "resnet34_weights.h5"


def weights_digest(data_dir: Path, pretrained: str | None) -> str | None:
    """SHA-256 of the weights' file, None if it is missing; `random` for random weights."""
    if pretrained is None:
        return "random"
    if not weights_file(data_dir).is_file():
        return None
    with weights_file(data_dir).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_weights(data_dir: Path) -> None:
    """Download the ImageNet weights (87 MB) if they are not under `data_dir`.

    Raises:
        InputError: they cannot be downloaded; a failed download leaves no file.
    """
    from flaxmodels.resnet.resnet import URLS

    target = weights_file(data_dir)
    if target.is_file():
        return
    try:
        download(URLS["resnet34"], target, timeout=TIMEOUT, max_bytes=MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise InputError(
            f"ResNet-34's ImageNet weights could not be downloaded from {URLS['resnet34']} ({in_one_line(error)}); put "
            f"them at {target} by hand, use ready features (--features-dir), or the data set that needs no download "
            "(--dataset digits)"
        ) from error
