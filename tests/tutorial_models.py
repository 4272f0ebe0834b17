"""The tutorials' model, written twice: as a PyTorch module with the names in Lightning's files, and as formulas in
float64 on the arrays of a Flax file."""

import numpy as np
import torch
from torch import nn


def sinusoids(length: int, width: int) -> np.ndarray:
    """PE[pos, 2i] = sin(pos / 10000^(2i/D)), PE[pos, 2i+1] = cos of the same, one number at a time."""
    table = np.zeros((length, width))
    for position in range(length):
        for column in range(width):
            angle = position / 10000 ** ((column - column % 2) / width)
            table[position, column] = np.cos(angle) if column % 2 else np.sin(angle)
    return table


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
    """Its state dict has the keys of the tutorials' Lightning files; the settings have the names there."""

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
        """Content of a checkpoint that Lightning saves."""
        return {
            "epoch": 3,
            "global_step": 1170,
            "pytorch-lightning_version": "1.0.2",
            "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5)}},
            "optimizer_states": [
                {"state": {0: {"step": 1170, "exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 5e-4}]}
            ],
            "lr_schedulers": [],
            "state_dict": self.state_dict(),
            "hparams_name": "kwargs",
            "hyper_parameters": self.hyperparameters,
        }


def evaluate(params: dict, x: np.ndarray, num_heads: int, *, positions: bool = True) -> np.ndarray:
    """Logits [B, T, C] of a Flax file's tree, by the tutorial's formulas in float64."""

    def dense(x, layer):
        return x @ layer["kernel"].astype(np.float64) + layer["bias"]

    def layer_norm(x, norm):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6) * norm["scale"] + norm["bias"]

    def attend(x, layer):
        fused = dense(x, layer["qkv_proj"])
        d = x.shape[-1] // num_heads
        heads = []
        for h in range(num_heads):  # q, k and v of the first head, then those of the second …
            query, key, value = (fused[..., (3 * h + i) * d : (3 * h + i + 1) * d] for i in range(3))
            weights = np.exp(query @ key.swapaxes(1, 2) / np.sqrt(d))
            heads.append(weights / weights.sum(-1, keepdims=True) @ value)
        return dense(np.concatenate(heads, -1), layer["o_proj"])

    x = dense(x, params["input_layer"])
    if positions:
        x = x + sinusoids(*x.shape[1:])
    for i in range(len(params["transformer"])):
        layer = params["transformer"][f"layers_{i}"]
        x = layer_norm(x + attend(x, layer["self_attn"]), layer["norm1"])
        hidden = np.maximum(dense(x, layer["linear_0"]), 0)
        x = layer_norm(x + dense(hidden, layer["linear_3"]), layer["norm2"])
    x = np.maximum(layer_norm(dense(x, params["output_net_0"]), params["output_net_1"]), 0)
    return dense(x, params["output_net_4"])


def flax_tree(num_features: int, width: int, num_classes: int, num_layers: int) -> dict:
    """The tree of a tutorial's Flax file, no two arrays alike."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return (0.3 * rng.normal(size=shape)).astype(np.float32)

    def dense(inputs: int, outputs: int) -> dict:
        return {"kernel": draw(inputs, outputs), "bias": draw(outputs)}

    def norm() -> dict:
        return {"scale": 1 + draw(width), "bias": draw(width)}

    def layer() -> dict:
        return {
            "self_attn": {"qkv_proj": dense(width, 3 * width), "o_proj": dense(width, width)},
            "linear_0": dense(width, 2 * width),
            "linear_3": dense(2 * width, width),
            "norm1": norm(),
            "norm2": norm(),
        }

    return {
        "input_layer": dense(num_features, width),
        "transformer": {f"layers_{i}": layer() for i in range(num_layers)},
        "output_net_0": dense(width, width),
        "output_net_1": norm(),
        "output_net_4": dense(width, num_classes),
    }
