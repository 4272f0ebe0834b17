"""Measure an encoder–decoder with the sizes of a widely read tutorial on Multi30k, against `torch.nn.Transformer`.

python benchmarks/translation.py    # four minutes on two CPU cores

The batch has 128 random pairs of 15 tokens, from vocabularies of 7 853 and 5 893. The forward and backward pass and
whole steps of Adam with clipped gradients are measured in turns. Ours is a hand-written loop: `prepare_jax`, then
`jax.jit`. Both have dropout of 0.1 in the sub-layers and in attention, sinusoidal positions, and no padding.
"""

import dataclasses
import math
from functools import partial

import jax
import numpy as np
import optax
import torch
from torch import Tensor, nn

from harness import measure_turns, print_figures
from reference_tasks import positions
from transformer_jax import Transformer, prepare_jax
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.nn.attention import AttentionSettings
from transformer_jax.nn.blocks import BlockSettings

DROPOUT = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SizesConfig:
    """Measure an encoder-decoder."""

    model_dim: int = setting(256, least=8)  # D
    num_heads: int = setting(8, least=1)  # H
    num_layers: int = setting(3, least=1)  # in each stack
    dim_feedforward: int = setting(512, least=1)  # F
    rows: int = setting(128, least=1)  # pairs in the batch
    length: int = setting(15, least=1)  # tokens of each side
    sources: int = setting(7853, least=2)  # tokens of the sources' vocabulary
    targets: int = setting(5893, least=2)
    turns: int = setting(17, least=1)  # of each contestant; the median counts

    __post_init__ = set_checked_fields


class TorchTranslator(nn.Module):
    """Logits `[B, T, V]` of the targets by PyTorch's own `nn.Transformer`."""

    def __init__(self, config: SizesConfig) -> None:
        super().__init__()
        D = config.model_dim  # noqa: N806
        self.source, self.target = nn.Embedding(config.sources, D), nn.Embedding(config.targets, D)
        self.register_buffer("positions", torch.from_numpy(positions(config.length, D)))
        self.register_buffer(
            "causal", nn.Transformer.generate_square_subsequent_mask(config.length)
        )
        layers = config.num_layers, config.num_layers, config.dim_feedforward
        self.transformer = nn.Transformer(D, config.num_heads, *layers, DROPOUT, batch_first=True)
        self.transformer.encoder.use_nested_tensor = False  # a prototype, which warns about padding
        self.dropout, self.output = nn.Dropout(DROPOUT), nn.Linear(D, config.targets)

    def embed(self, ids: Tensor, embedding: nn.Embedding, position: int = 0) -> Tensor:
        """Embeddings of tokens, the first of which is at `position`."""
        positions = self.positions[position : position + ids.shape[1]]
        return self.dropout(embedding(ids) * math.sqrt(positions.shape[1]) + positions)

    def forward(self, source: Tensor, target: Tensor, padding: Tensor | None = None) -> Tensor:
        x, y = self.embed(source, self.source), self.embed(target, self.target)
        causal = self.causal[: y.shape[1], : y.shape[1]]
        masks = {
            "src_key_padding_mask": padding,
            "memory_key_padding_mask": padding,
            "tgt_mask": causal,
        }
        return self.output(self.transformer(x, y, **masks, tgt_is_causal=True))


class Theirs:
    """Steps in eager PyTorch."""

    def __init__(self, config: SizesConfig, source: np.ndarray, target: np.ndarray) -> None:
        self.model = TorchTranslator(config)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-4)
        self.source, self.target = torch.tensor(source), torch.tensor(target)

    def gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        logits = self.model(self.source, self.target[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), self.target[:, 1:].flatten()).backward()

    def step(self) -> None:
        self.gradients()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def translator(config: SizesConfig) -> Transformer:
    """The same model here."""
    return Transformer(
        config.sources,
        config.targets,
        model_dim=config.model_dim,
        num_heads=config.num_heads,
        num_encoder_layers=config.num_layers,
        num_decoder_layers=config.num_layers,
        dim_feedforward=config.dim_feedforward,
        settings=BlockSettings(DROPOUT, attention=AttentionSettings(dropout_prob=DROPOUT)),
    )


class Ours:
    """Steps of a hand-written loop around `jax.jit`."""

    def __init__(self, config: SizesConfig, source: np.ndarray, target: np.ndarray) -> None:
        model = translator(config)
        self.batch, self.key = (source, target), jax.random.key(0)
        self.params = jax.jit(model.init)(self.key, source, target[:, :-1])["params"]
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(5e-4))
        self.state = optimizer.init(self.params)

        def loss(params, batch, key):
            source, target = batch
            logits = model.apply(
                {"params": params}, source, target[:, :-1], train=True, rngs={"dropout": key}
            )
            return optax.softmax_cross_entropy_with_integer_labels(logits, target[:, 1:]).mean()

        @partial(jax.jit, donate_argnums=(0, 1))
        def update(params, state, batch, key):
            changes, state = optimizer.update(jax.grad(loss)(params, batch, key), state)
            return optax.apply_updates(params, changes), state

        self._gradients, self._update = jax.jit(jax.value_and_grad(loss)), update

    def gradients(self) -> None:
        jax.block_until_ready(self._gradients(self.params, self.batch, self.key))

    def step(self) -> None:
        self.params, self.state = self._update(self.params, self.state, self.batch, self.key)
        jax.block_until_ready(self.params)


def measure(config: SizesConfig) -> dict[str, dict[str, float]]:
    """Milliseconds by measurement and contestant."""
    prepare_jax()
    draw = np.random.default_rng(0).integers
    source = draw(4, config.sources, size=(config.rows, config.length))
    target = draw(4, config.targets, size=(config.rows, config.length + 1))
    contestants = {
        "transformer-jax": Ours(config, source, target),
        "torch.nn.Transformer": Theirs(config, source, target),
    }
    return {
        what: measure_turns(
            {name: getattr(one, method) for name, one in contestants.items()}, config.turns
        )
        for what, method in (("forward and backward", "gradients"), ("a step", "step"))
    }


def main(config: SizesConfig) -> None:
    print_figures(measure(config), " ms")


if __name__ == "__main__":
    run(partial(parse, SizesConfig), main)
