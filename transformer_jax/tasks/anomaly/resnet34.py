"""ResNet-34 as a function from images to features, and the file of its weights."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray, UInt8

from transformer_jax.data.downloads import directory_for_download, in_one_line
from transformer_jax.devices.compilation import CompiledStep, begin_to_run_once
from transformer_jax.devices.stopwatch import Stopwatch
from transformer_jax.errors import InputError
from transformer_jax.tasks.data_files import file_size
from transformer_jax.trees import Variables

FEATURE_DIM = 512  # channels of the last block
ACTIVATION = "block4_2"  # the last block's
MAX_BYTES = 2**28  # of the weights' file, which has 87 MB


class ResNet34Features:
    """Activation of the last block, averaged over height and width (He et al. 2016, implemented by flaxmodels).

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

        def init(key: PRNGKeyArray) -> Variables:
            # The weights do not depend on the resolution; a small one initializes them quickly.
            variables: Variables = model.init(key, jnp.zeros((1, 32, 32, 3)), train=False)
            return variables

        try:
            if pretrained and weights_file(data_dir).is_file():
                _check_sizes(weights_file(data_dir))
            _, finish = begin_to_run_once(init, jax.random.key(0))
            self._variables = finish()
        except (OSError, KeyError) as error:
            raise InputError(
                f"{weights_file(data_dir)} must hold flaxmodels' weights of ResNet-34 ({error}); "
                "remove the file to download it again"
            ) from error

        def features(variables: Variables, images: UInt8[Array, "B 32 32 3"]) -> Float[Array, "B 512"]:
            pixels = images.astype(jnp.float32) / 255
            pixels = jax.image.resize(pixels, (batch_size, resolution, resolution, 3), "bilinear")  # [B R R 3]
            activations: dict[str, Array] = model.apply(variables, pixels, train=False)
            return activations[ACTIVATION].mean(axis=(1, 2))  # [B 512]

        self._stopwatch = Stopwatch("extract", "compile")
        self._step = CompiledStep(features, stopwatch=self._stopwatch)

    @property
    def num_compilations(self) -> int:
        """Number of compilations of the network."""
        return self._step.count

    def __call__(self, images: UInt8[np.ndarray, "N 32 32 3"]) -> Iterator[Float[np.ndarray, "B 512"]]:
        """Features of the images in order, one batch after another; the last one may be shorter."""
        for start in range(0, len(images), self.batch_size):
            batch = images[start : start + self.batch_size]
            missing = self.batch_size - len(batch)
            padded = np.pad(batch, [(0, missing), (0, 0), (0, 0), (0, 0)])  # one shape, one compilation
            yield np.asarray(self._step(self._variables, padded))[: len(batch)]

    def seconds_per_batch(self, images: UInt8[np.ndarray, "N 32 32 3"]) -> float:
        """Mean duration of a batch, measured on these images, without compilation."""
        before = self._stopwatch.seconds["extract"]
        with self._stopwatch.during("extract"):
            num_batches = sum(1 for _ in self(images))
        return (self._stopwatch.seconds["extract"] - before) / num_batches


def weights_file(data_dir: Path) -> Path:
    """Path where flaxmodels looks for the ImageNet weights if `data_dir` is its `ckpt_dir`."""
    return data_dir / "flaxmodels" / "resnet34_weights.h5"


def weights_digest(data_dir: Path, pretrained: str | None) -> str | None:
    """SHA-256 of the weights' file, None if it is missing; `random` for random weights."""
    if pretrained is None:
        return "random"
    if not weights_file(data_dir).is_file():
        return None
    file_size(weights_file(data_dir), MAX_BYTES)
    with weights_file(data_dir).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_weights(data_dir: Path, *, download: bool = True) -> None:
    """Download the ImageNet weights (87 MB) if they are not under `data_dir`.

    Raises:
        InputError: they cannot be downloaded; a failed download leaves no file.
    """
    import h5py
    from flaxmodels.resnet.resnet import URLS, utils

    target = weights_file(data_dir)
    if target.is_file():
        return
    url = URLS["resnet34"]
    by_hand = (
        f"put them at {target} by hand, use ready features (--features-dir), "
        "or the data set that needs no download (--dataset digits)"
    )
    if not download:
        raise InputError(f"ResNet-34's ImageNet weights are not at {target}, and download is off; {by_hand} ({url})")
    with directory_for_download(data_dir) as temporary:
        try:
            downloaded = Path(utils.download(str(temporary), url))
            h5py.File(downloaded, "r").close()  # flaxmodels also saves the page of an HTTP error
        except OSError as error:  # requests' errors are OSErrors
            raise InputError(
                f"ResNet-34's ImageNet weights could not be downloaded from {url} ({in_one_line(error)}); {by_hand}"
            ) from error
        try:
            target.parent.mkdir(exist_ok=True)
            downloaded.replace(target)
        except OSError as error:  # something else is in their place
            raise InputError(f"ResNet-34's ImageNet weights cannot be moved to {target} ({error})") from error


def _check_sizes(path: Path) -> None:
    """Raise an `OSError` if the arrays have more than twice the file's bytes: HDF5 makes up what a file only claims."""
    import h5py

    sizes: list[int] = []
    with h5py.File(path, "r") as file:
        file.visititems(lambda _, item: sizes.append(item.nbytes if isinstance(item, h5py.Dataset) else 0))
    if sum(sizes) > 2 * file_size(path, MAX_BYTES):
        raise OSError(f"its arrays claim {sum(sizes)} bytes, more than a file of its size holds")
