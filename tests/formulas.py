"""The models' formulas in NumPy and float64: every activation of a forward pass by name."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

Activations = dict[str, np.ndarray]
EPSILON = 1e-6  # of the norms


def wide(params: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return parameters by path, in float64."""
    return {path: np.asarray(leaf, np.float64) for path, leaf in flatten_dict(params, sep="/").items()}


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def sinusoids(length: int, width: int) -> np.ndarray:
    angle = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    table = np.empty((length, width))
    table[:, 0::2], table[:, 1::2] = np.sin(angle), np.cos(angle)[:, : width // 2]
    return table


class Formulas:
    """A forward pass, formula by formula; `seen` collects its activations.

    Args:
        params: parameters of the model.
        num_heads: H.
        norm_first: pre-norm instead of post-norm.
        is_gated: whether the feed-forward is gated.
    """

    def __init__(
        self, params: Mapping[str, Any], num_heads: int, *, norm_first: bool = False, is_gated: bool = False
    ) -> None:
        self.params, self.num_heads, self.norm_first, self.is_gated = wide(params), num_heads, norm_first, is_gated
        self.seen: Activations = {}

    def see(self, name: str, x: np.ndarray) -> np.ndarray:
        self.seen[name] = x
        return x

    def dense(self, path: str, x: np.ndarray) -> np.ndarray:
        return x @ self.params[f"{path}/kernel"] + self.params[f"{path}/bias"]

    def norm(self, path: str, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        factor = self.see(f"{name}.scale", 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON))
        y = centred * factor * self.params[f"{path}/scale"] + self.params[f"{path}/bias"]
        return self.see(f"{name}.normalized", y)

    def heads(self, x: np.ndarray, width: int) -> np.ndarray:
        return x.reshape(*x.shape[:-1], -1, width).swapaxes(1, 2)

    def attention(self, path: str, name: str, x: np.ndarray, memory: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """`[B, T, D]` from `x` and the memory; `mask` broadcasts to `[B, H, T, S]`."""
        width = self.params[f"{path}/query_proj/kernel"].shape[1] // self.num_heads
        query, key, value = (
            self.heads(self.dense(f"{path}/{part}_proj", of), width)
            for part, of in (("query", x), ("key", memory), ("value", memory))
        )
        for part, array in (("queries", query), ("keys", key), ("values", value)):
            self.see(f"{name}.{part}", array)
        group = self.num_heads // key.shape[1]
        key, value = key.repeat(group, 1), value.repeat(group, 1)
        logits = self.see(f"{name}.logits", query @ key.swapaxes(-1, -2) / np.sqrt(width))
        weights = self.see(f"{name}.weights", softmax(logits if mask is None else np.where(mask, logits, -np.inf)))
        outputs = self.see(f"{name}.head_outputs", weights @ value)
        kernels = self.params[f"{path}/output_proj/kernel"].reshape(self.num_heads, width, -1)
        self.see(f"{name}.head_results", outputs @ kernels)
        joined = outputs.swapaxes(1, 2).reshape(*x.shape[:2], -1)
        return self.see(f"{name}.output", self.dense(f"{path}/output_proj", joined))

    def feed_forward(self, path: str, name: str, x: np.ndarray) -> np.ndarray:
        before = self.see(f"{name}.pre", self.dense(f"{path}/{'gate' if self.is_gated else 'expand'}", x))
        hidden = np.maximum(before, 0)
        if self.is_gated:
            hidden = hidden * self.see(f"{name}.pre_linear", self.dense(f"{path}/expand", x))
        return self.see(f"{name}.output", self.dense(f"{path}/contract", self.see(f"{name}.hidden", hidden)))

    def residual(self, path: str, name: str, x: np.ndarray, sublayer: Callable[..., np.ndarray]) -> np.ndarray:
        layer, _, part = name.rpartition(".")
        at, norm = (path, name), (f"{path}_residual/norm", f"{name}_norm")
        y = x + sublayer(*at, self.norm(*norm, x)) if self.norm_first else self.norm(*norm, x + sublayer(*at, x))
        return self.see(f"{layer}.after_{part}", y)

    def block(
        self,
        path: str,
        name: str,
        x: np.ndarray,
        mask: np.ndarray,
        memory: np.ndarray | None,
        memory_mask: np.ndarray | None,
    ) -> np.ndarray:
        self.see(f"{name}.input", x)
        x = self.residual(
            f"{path}/self_attn", f"{name}.attention", x, lambda *at: self.attention(*at, memory=at[-1], mask=mask)
        )
        if memory is not None:
            names = f"{path}/cross_attn", f"{name}.cross_attention"
            x = self.residual(*names, x, lambda *at: self.attention(*at, memory=memory, mask=memory_mask))
        x = self.residual(f"{path}/feed_forward", f"{name}.feed_forward", x, self.feed_forward)
        return self.see(f"{name}.output", x)

    def stack(
        self,
        name: str,
        num_layers: int,
        x: np.ndarray,
        mask: np.ndarray,
        memory: np.ndarray | None = None,
        memory_mask: np.ndarray | None = None,
    ) -> np.ndarray:
        for layer in range(num_layers):
            x = self.block(f"{name}/layers_{layer}", f"{name}.layers.{layer}", x, mask, memory, memory_mask)
        if f"{name}/norm/scale" in self.params:
            x = self.norm(f"{name}/norm", f"{name}.norm", x)
        return self.see(f"{name}.output", x)

    def with_positions(self, x: np.ndarray, number: str = "") -> np.ndarray:
        positions = np.broadcast_to(sinusoids(*x.shape[1:]), x.shape)
        return self.see(f"token_embeddings{number}", x) + self.see(f"positions{number}", positions)

    def predictor(self, x: np.ndarray, num_layers: int, mask: np.ndarray) -> Activations:
        """Return all activations of a `TransformerPredictor`."""
        x = self.with_positions(self.dense("input_layer", np.asarray(x, np.float64)))
        x = self.stack("encoder", num_layers, self.see("embeddings", x), mask)
        hidden = np.maximum(self.norm("output_norm", "output_norm", self.dense("output_hidden", x)), 0)
        self.see("logits", self.dense("output_layer", hidden))
        return self.seen

    def encoder_decoder(
        self, source: np.ndarray, target: np.ndarray, num_layers: tuple[int, int], source_mask: np.ndarray
    ) -> Activations:
        """Return all activations of a `Transformer` over tokens with untied embeddings."""
        embeddings = []
        for side, tokens in (("source", source), ("target", target)):
            table = self.params[f"{side}_embedding/embedding"]
            x = table[tokens] * np.sqrt(table.shape[1])
            embeddings.append(self.with_positions(x, ".2" if embeddings else ""))
        causal = np.tri(target.shape[1], dtype=bool)
        memory = self.stack("encoder", num_layers[0], self.see("source_embeddings", embeddings[0]), source_mask)
        self.see("target_embeddings", embeddings[1])
        x = self.stack("decoder", num_layers[1], embeddings[1], causal, memory, source_mask)
        self.see("logits", self.dense("output_layer", x))
        return self.seen
