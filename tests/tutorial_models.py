"""The tutorials' model as a PyTorch module with the names of Lightning's files, and as the arrays of a Flax file."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from flax.traverse_util import flatten_dict, unflatten_dict
from formulas import sinusoids
from repository import REPOSITORY
from torch import nn

PUBLISHED = Path(os.environ.get("PUBLISHED_WEIGHTS", REPOSITORY.parent / "shared" / "pretrained")) / "ReverseTask.ckpt"
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_file(), reason=f"needs the published {PUBLISHED}; PUBLISHED_WEIGHTS may name its folder"
)


class SelfAttention(nn.Module):
    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv_proj = nn.Linear(width, 3 * width)
        self.o_proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        fused = self.qkv_proj(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [B H T 3d]
        query, key, value = fused.tensor_split(3, dim=-1)
        values = nn.functional.scaled_dot_product_attention(query, key, value, mask)
        return self.o_proj(values.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = SelfAttention(width, num_heads)
        self.linear_net = nn.Sequential(
            nn.Linear(width, 2 * width), nn.Dropout(dropout), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        x = self.norm1(x + self.dropout(self.self_attn(x, mask)))
        return self.norm2(x + self.dropout(self.linear_net(x)))


class TorchPredictor(nn.Module):
    """Module with the state-dict keys and setting names of the tutorials' Lightning files."""

    def __init__(self, **hyperparameters) -> None:
        super().__init__()
        self.hyperparameters = settings = hyperparameters
        width, dropout = settings["model_dim"], settings["dropout"]
        self.input_net = nn.Sequential(nn.Dropout(settings["input_dropout"]), nn.Linear(settings["input_dim"], width))
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList(
            Block(width, settings["num_heads"], dropout) for _ in range(settings["num_layers"])
        )
        self.output_net = nn.Sequential(
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(width, settings["num_classes"]),
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None, positions: bool = True) -> torch.Tensor:
        x = self.input_net(x)
        if positions:
            x = x + torch.tensor(sinusoids(*x.shape[1:]), dtype=x.dtype)
        for layer in self.transformer.layers:
            x = layer(x, mask)
        return self.output_net(x)

    def checkpoint(self) -> dict:
        """Return the content of a checkpoint as Lightning saves it."""
        others = {"epoch": 3, "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}]}
        return others | {"state_dict": self.state_dict(), "hyper_parameters": self.hyperparameters}


# Flax's names for those of PyTorch.
NAMES = {"input_net.1": "input_layer", "layers.": "layers_", "linear_net.": "linear_", "output_net.": "output_net_"}


def path_in_flax(name: str) -> tuple[str, ...]:
    """Return the path in a Flax file of the array with this name in PyTorch."""
    for of_torch, of_flax in NAMES.items():
        name = name.replace(of_torch, of_flax)
    *layer, leaf = name.split(".")
    of_norm = layer[-1] in ("norm1", "norm2", "output_net_1")
    return (*layer, leaf if leaf == "bias" else "scale" if of_norm else "kernel")


def flax_tree(num_features: int, width: int, num_classes: int, num_layers: int) -> dict:
    """Return the tree of a tutorial's Flax file, with no two arrays equal."""
    rng, arrays = np.random.default_rng(0), {}
    for name, tensor in _without_dropout(num_features, width, num_classes, 1, num_layers).state_dict().items():
        path = path_in_flax(name)
        arrays[path] = ((path[-1] == "scale") + 0.3 * rng.normal(size=tuple(tensor.shape)[::-1])).astype(np.float32)
    return unflatten_dict(arrays)


def evaluate(tree: dict, x: np.ndarray, num_heads: int) -> np.ndarray:
    """Compute the logits [B, T, C] of a Flax file's tree in float64."""
    arrays = flatten_dict(tree)
    num_features, width = arrays["input_layer", "kernel"].shape
    num_classes, num_layers = len(arrays["output_net_4", "bias"]), len(tree["transformer"])
    module = _without_dropout(num_features, width, num_classes, num_heads, num_layers).double()
    module.load_state_dict({name: torch.tensor(arrays[path_in_flax(name)].T) for name in module.state_dict()})
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = 1e-6  # Flax's
    return module(torch.tensor(x).double()).detach().numpy()


def _without_dropout(num_features: int, width: int, num_classes: int, num_heads: int, num_layers: int):
    sizes = {"input_dim": num_features, "model_dim": width, "num_classes": num_classes}
    return TorchPredictor(**sizes, num_heads=num_heads, num_layers=num_layers, dropout=0.0, input_dropout=0.0)
