"""Kinds of positional encoding, as small classes for `BlockSettings(positions=...)`.

| class | where | source |
| --- | --- | --- |
| `SinusoidalPositions` | added to the embeddings | Vaswani et al. 2017, section 3.5 |
| `LearnedPositions` | added to the embeddings | Gehring et al. 2017, section 3.1 |
| `RotaryPositions` | queries and keys of self-attention | Su et al. 2021 |
| `ALiBiPositions` | bias of self-attention's logits | Press et al. 2022 |
| `RelativePositions` | learned bias of self-attention's logits | Raffel et al. 2020, section 2.1 |
| `NoPositions` | nowhere: the model is permutation-equivariant | |

Positions inside attention act in self-attention only: source and target of cross-attention have no common positions.

A kind of your own is a frozen dataclass and a subclass of `Positions`. It defines what is added to the embeddings
(`encoding`), what happens inside self-attention (`in_attention`), or both.
"""

import dataclasses
import math
from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import Count, Positive, Size
from transformer_jax.attention.biases import AttentionBias
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.positions import (
    AddedPositions,
    AttentionPositions,
    First,
    Heads,
    Positions,
    positions_of,
)
from transformer_jax.nn.positions import SinusoidalPositions as SinusoidalPositions

FrequencyScaling = Callable[[np.ndarray], np.ndarray]


class LearnedEncoding(AddedPositions):
    """Add a learned vector for each position (Gehring et al. 2017, section 3.1).

    The vectors are initialized with a mean square of 1/2, like sinusoidal positions, unless `deviation` is given.

    Raises:
        InputError: at construction, if `d_model` or `max_len` is below 1.
    """

    deviation: Positive = math.sqrt(0.5)  # standard deviation of the initial vectors
    num_unused: Count = 0  # vectors before that of position 0

    def setup(self) -> None:
        init = nn.initializers.normal(self.deviation)
        shape = self.num_unused + self.max_len, self.d_model
        self.embedding = self.param("embedding", init, shape)

    def table(self, length: int) -> Float[Array, "T D"]:
        return jnp.asarray(self.embedding)[self.num_unused : self.num_unused + length]


@dataclasses.dataclass(frozen=True)
class LearnedPositions(Positions):
    """Learned positions: a vector for each position, added to the embeddings (Gehring et al. 2017, section 3.1).

    Raises:
        InputError: `max_len` is below 1.
    """

    max_len: Size | None = None  # number of learned positions; None: as many as the model accepts
    num_unused: Count = 0  # vectors before that of position 0, which some files have, e.g. BART's

    def encoding(self, d_model: int, max_len: int) -> LearnedEncoding:
        length = min(self.max_len or max_len, max_len)
        return LearnedEncoding(d_model, length, num_unused=self.num_unused)


@dataclasses.dataclass(frozen=True)
class RotaryPositions(Positions):
    """Rotary positions: queries and keys are rotated by angles proportional to their position (Su et al. 2021).

    Raises:
        InputError: `base` is not a finite number above 0, or `fraction` is outside (0, 1]; at use, the rotated part of
            a head has an odd width or width 0.
    """

    base: Positive = 10_000.0  # base of the powers that are the angles' frequencies
    # rotated fraction of each head, its first elements (Black et al. 2022, section 2.1.1)
    fraction: Positive = 1.0
    in_halves: bool = False  # whether pairs are (x_i, x_{i + d/2}), as in Llama, or neighbours
    # changes the frequencies, for sequences longer than those in training
    scaling: FrequencyScaling | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction > 1:
            raise InputError(f"fraction is {self.fraction}; it must be above 0 and at most 1")

    def check(self, head_width: int) -> None:
        width = int(head_width * self.fraction)
        if width % 2 or not width:
            raise InputError(
                f"{width} of a head's {head_width} elements are rotated; it must be even and"
                " above 0; without head_width, a head has model_dim / num_heads elements"
            )

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions:
        return RotaryInAttention(self)

    def turns(self, width: int, first: First, num: int, length: int) -> Float[Array, "*B num w"]:
        """Return the cosines, then the sines, of the angles of `width` elements at `num` positions from `first` on.

        They are computed in float64 and rounded once to float32.

        Raises:
            InputError: `first` is known at tracing time and outside 0 … length - num.
        """
        frequency = self.base ** (-np.arange(0, width, 2) / width)  # [d/2]
        if self.scaling is not None:
            frequency = self.scaling(frequency)
        angle = np.arange(length)[:, None] * frequency
        table = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
        # YaRN also scales rotated queries and keys (Peng et al. 2023, section 3.4)
        table *= getattr(self.scaling, "amplitude", 1)
        return positions_of(table.astype(np.float32), first, num)


@dataclasses.dataclass(frozen=True)
class ALiBiPositions(Positions):
    """ALiBi: logits decrease linearly with distance, with a different slope in each head (Press et al. 2022).

    If queries look ahead too, as in an encoder, the absolute distance counts.
    """

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions:
        return ALiBiInAttention(num_heads)


@dataclasses.dataclass(frozen=True)
class RelativePositions(Positions):
    """Relative positions of T5: a learned bias for each head and distance bucket (Raffel et al. 2020, section 2.1).

    Raises:
        InputError: `num_buckets` is odd or below 4, or `max_distance` is not above the number of buckets of a single
            distance, or above 2²⁰.
    """

    # number of distance buckets; half of them are for keys after the query, if it looks ahead
    num_buckets: int = 32
    max_distance: int = 128  # this and all larger distances share a bucket
    # whether all blocks of a stack share one table, as in T5, or each block has a table
    is_shared: bool = False

    def __post_init__(self) -> None:
        check_sizes(4, num_buckets=self.num_buckets)
        if self.num_buckets % 2:
            raise InputError(
                f"num_buckets is {self.num_buckets}; it must be even, since each direction uses"
                " half"
            )
        check_sizes(self.num_buckets // 2 + 1, max_distance=self.max_distance)
        if self.max_distance > 2**20:  # the table of buckets has an entry per distance
            raise InputError(f"max_distance is {self.max_distance}; it may be at most {2**20}")

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions | None:
        return None if self.is_shared else RelativeInAttention(num_heads, looks_ahead, self)

    def in_stack(self, num_heads: int, looks_ahead: bool) -> AttentionPositions | None:
        return RelativeInAttention(num_heads, looks_ahead, self) if self.is_shared else None


class RotaryInAttention(AttentionPositions):
    """Rotary positions inside attention: `rotate` of queries and keys."""

    kind: RotaryPositions

    def encode(self, x: Heads, first: First, length: int) -> Heads:
        rotary_width = int(x.shape[-1] * self.kind.fraction)
        rotated = rotate(x[..., :rotary_width], first, length, self.kind)
        return jnp.concatenate([rotated, x[..., rotary_width:]], axis=-1)


class ALiBiInAttention(AttentionPositions):
    """ALiBi inside attention: the bias `ALiBi`."""

    num_heads: int  # H

    def bias(self) -> AttentionBias:
        # loaded only with these positions, as is `RelativeBias`
        from transformer_jax.attention.position_biases import ALiBi

        return ALiBi(self.num_heads)


class RelativeInAttention(AttentionPositions):
    """Relative positions inside attention: the bias `RelativeBias` with a learned table, initialized with zeros."""

    num_heads: int  # H
    looks_ahead: bool
    kind: RelativePositions

    def setup(self) -> None:
        # Named like other embeddings, which are excluded from weight decay.
        self.embedding = self.param(
            "embedding", nn.initializers.zeros, (self.kind.num_buckets, self.num_heads)
        )

    def bias(self) -> AttentionBias:
        from transformer_jax.attention.position_biases import RelativeBias

        return RelativeBias(self.embedding, self.looks_ahead, self.kind.max_distance)


def rotate(
    x: Float[Array, "*leading T d"], first: First, length: int, kind: RotaryPositions
) -> Float[Array, "*leading T d"]:
    """Rotate the pair (x_2i, x_2i+1) of each position by the angle `pos · base^(-2i/d)` (Su et al. 2021, equation 34).

    The product of a query and a key then depends only on the difference of their positions.

    Args:
        x: queries or keys `[..., T, d]`, d even.
        first: position of the first query or key, 0 … length - T; it may be traced.
        length: maximum number of positions.
        kind: the frequencies, and which elements form pairs; `fraction` is ignored, all elements of `x` are rotated.

    Raises:
        InputError: `first` is known at tracing time and outside its range.
    """
    *_, num, width = x.shape
    turns = kind.turns(width, first, num, length)
    if turns.ndim > 2:
        turns = turns[:, None]  # [B 1 T d], for all heads
    cos, sin = turns[..., : width // 2], turns[..., width // 2 :]  # [T d/2]
    if kind.in_halves:
        even, odd = jnp.split(x, 2, axis=-1)
    else:
        pairs = x.reshape(*x.shape[:-1], width // 2, 2)
        even = pairs[..., 0]
        odd = pairs[..., 1]
    parts = [even * cos - odd * sin, even * sin + odd * cos]  # float32 or wider
    rotated = jnp.concatenate(parts, axis=-1) if kind.in_halves else jnp.stack(parts, axis=-1)
    return rotated.reshape(x.shape).astype(x.dtype)
