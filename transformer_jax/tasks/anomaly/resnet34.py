"""ResNet-34 as a function from images to features, and the file of its weights."""

from pathlib import Path

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transformer_jax.data.downloads import download
from transformer_jax.outside_files import outside_file
from transformer_jax.tasks.anomaly.network_features import Network
from transformer_jax.trees import Variables

ACTIVATION = "block4_2"  # of the last block
OTHERWISE = (
    ", use another network (features_by=…), or use dataset='digits', which needs no download"
)
MAX_BYTES = 2**28  # of the weights' file, which has 87 MB


def resnet34(data_dir: Path) -> Network:
    """ResNet-34's last activation, averaged over height and width (He et al. 2016, implemented by flaxmodels).

    Images are normalized with ImageNet's statistics.

    Args:
        data_dir: directory of the weights, see `weights_file`.

    Raises:
        InputError: the weights' file cannot be read.
    """
    from flaxmodels import ResNet34

    model = ResNet34(
        output="activations", pretrained="imagenet", normalize=True, ckpt_dir=str(data_dir)
    )
    with outside_file(weights_file(data_dir), "flaxmodels' file of weights", MAX_BYTES):
        # Not compiled: the program would contain copies of the weights as constants. They do not
        # depend on the resolution; a small one initializes them quickly.
        variables = model.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)), train=False)

    @jax.jit
    def averaged(variables: Variables, images: Float[Array, "B R R 3"]) -> Float[Array, "B 512"]:
        activations: dict[str, Array] = model.apply(variables, images, train=False)
        return activations[ACTIVATION].mean(axis=(1, 2))

    return lambda images: averaged(variables, images)


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
        what = "ResNet-34's ImageNet weights"
        download(URLS["resnet34"], target, what, more=OTHERWISE)
