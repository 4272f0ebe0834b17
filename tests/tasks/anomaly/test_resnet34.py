"""ResNet-34's features equal PyTorch's; its weights are downloaded completely or not at all."""

import re

import h5py
import numpy as np
import pytest
import torch
from flaxmodels.resnet.resnet import URLS
from local_server import UNREACHABLE, serve

from transformer_jax.errors import InputError
from transformer_jax.tasks.anomaly.network_features import features_by
from transformer_jax.tasks.anomaly.resnet34 import fetch_weights, resnet34, weights_file


def network_of_pytorch() -> torch.nn.Module:
    """PyTorch's network with random weights and statistics."""
    import torchvision  # takes seconds

    torch.manual_seed(3)
    model = torchvision.models.resnet34(weights=None)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.bias, -0.5, 0.5)
    with torch.no_grad():
        model(torch.randn(16, 3, 71, 71))  # sets the statistics, so that what differs between images comes through
    return model.eval()


def published_weights(model) -> bytes:
    """Weights of PyTorch's network in the format of flaxmodels' file."""
    names = {"running_mean": "mean", "running_var": "var", "bias": "bias"}
    with h5py.File("weights", "w", driver="core", backing_store=False) as file:
        for key, value in model.state_dict().items():
            key = key.replace("downsample.0", "downsample.conv").replace("downsample.1", "downsample.bn")
            *path, kind = re.sub(r"(layer\d)\.(\d)", r"\1.block\2", key).split(".")
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
    pixels = torch.nn.functional.interpolate(pixels, resolution, mode="bilinear", align_corners=False)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    backbone = torch.nn.Sequential(*list(model.children())[:-2])
    with torch.no_grad():
        return backbone((pixels - mean[:, None, None]) / std[:, None, None]).mean((2, 3)).numpy()


@pytest.mark.slow
def test_features_are_those_of_pytorch_with_downloaded_weights(tmp_path, monkeypatch):
    model = network_of_pytorch()
    pages = {"/resnet34_weights.h5": published_weights(model)}
    data_dir = tmp_path / "data"
    with serve(pages) as (url, requests):
        monkeypatch.setitem(URLS, "resnet34", f"{url}/resnet34_weights.h5?dl=1")
        fetch_weights(data_dir)
        fetch_weights(data_dir)
    assert requests == ["/resnet34_weights.h5"]
    assert [path for path in data_dir.rglob("*") if path.is_file()] == [weights_file(data_dir)]
    assert weights_file(data_dir).read_bytes() == pages.pop("/resnet34_weights.h5")  # 87 MB, not needed any more

    images = np.random.default_rng(2).integers(256, size=(13, 32, 32, 3), dtype=np.uint8)
    monkeypatch.setattr("transformer_jax.tasks.anomaly.network_features.BATCH_SIZE", 5)
    found = features_by(resnet34(data_dir), images, resolution=71)
    expected = features_by_pytorch(model, images, 71)
    spread = expected.std(axis=0).mean()  # over the images
    np.testing.assert_allclose(found, expected, atol=3e-4 * spread)


def test_weights_that_cannot_be_downloaded_say_what_to_do_and_leave_nothing(tmp_path, monkeypatch):
    data_dir = tmp_path / "data"
    monkeypatch.setitem(URLS, "resnet34", f"{UNREACHABLE}/w.h5?dl=1")
    with pytest.raises(InputError, match=r"^ResNet-34's ImageNet weights could not be downloaded from ") as caught:
        fetch_weights(data_dir)
    for advice in (f"put the file at {weights_file(data_dir)} by hand", "features_by=…", "dataset='digits'", "w.h5"):
        assert advice in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_damaged_weights_are_named(tmp_path):
    path = weights_file(tmp_path)
    path.parent.mkdir()
    for write in (lambda: path.write_bytes(b"no HDF5"), lambda: h5py.File(path, "w").close()):
        write()
        with pytest.raises(InputError, match=str(path)) as caught:
            resnet34(tmp_path)
        assert "\n" not in str(caught.value)
