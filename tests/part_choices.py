"""Combinations of the parts of blocks: any two choices of different parts occur together in some combination."""

import itertools

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax import (
    ALiBiPositions,
    AttentionSettings,
    BlockSettings,
    GatedFeedForward,
    LearnedPositions,
    RMSNorm,
    RotaryPositions,
)
from transformer_jax.attention import BiasFunction
from transformer_jax.nn import LayerNorm, NoPositions, RelativePositions, SinusoidalPositions
from transformer_jax.nn.layers import FeedForward

MAX_LEN = 8  # positions that are learned


def divided(logit, batch, head, query, key, log_temperature):
    return logit / jnp.exp(log_temperature)[head]


class Temperature(nn.Module):
    """A learned temperature of each head."""

    num_heads: int

    @nn.compact
    def __call__(self):
        return BiasFunction(divided, (self.param("log_temperature", nn.initializers.zeros, (self.num_heads,)),))


CHOICES = {
    "positions": [
        SinusoidalPositions(),
        LearnedPositions(MAX_LEN),
        RotaryPositions(),
        ALiBiPositions(),
        RelativePositions(num_buckets=4, max_distance=5),
        NoPositions(),
    ],
    "feed_forward": [(FeedForward, nn.gelu), (GatedFeedForward, nn.silu)],
    "num_kv_heads": [None, 2],
    "qk_norm": [None, RMSNorm],
    "logit_change": [None, Temperature],
    "norm": [LayerNorm, RMSNorm],
    "norm_first": [False, True],
}  # fmt: skip
Row = tuple[int, ...]  # number of the choice for each part


def pairs_of(row: Row) -> set:
    return set(itertools.combinations(enumerate(row), 2))


def pairwise() -> list[Row]:
    """Return combinations that cover all pairs of choices, greedily: each has as many new pairs as possible."""
    every = list(itertools.product(*(range(len(choices)) for choices in CHOICES.values())))
    missing, rows = set().union(*map(pairs_of, every)), []
    while missing:
        rows.append(max(every, key=lambda row: len(pairs_of(row) & missing)))
        missing -= pairs_of(rows[-1])
    return rows


def settings_of(row: Row) -> BlockSettings:
    chosen = {name: CHOICES[name][number] for name, number in zip(CHOICES, row, strict=True)}
    feed_forward, activation = chosen.pop("feed_forward")
    names = "num_kv_heads", "qk_norm", "logit_change"
    attention = AttentionSettings(**{name: chosen.pop(name) for name in names})
    return BlockSettings(**chosen, feed_forward=feed_forward, activation=activation, attention=attention)
