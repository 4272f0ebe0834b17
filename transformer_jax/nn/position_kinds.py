"""Ways in which a model knows the order of a sequence, as small classes for `BlockSettings(positions=...)`.

| class | where | source |
| --- | --- | --- |
| `SinusoidalPositions` | added to the embeddings | Vaswani et al. 2017, section 3.5 |
| `LearnedPositions` | added to the embeddings | Gehring et al. 2017, section 3.1 |
| `RotaryPositions` | queries and keys of self-attention | Su et al. 2021 |
| `ALiBiPositions` | bias of self-attention's logits | Press et al. 2022 |
| `RelativePositions` | learned bias of self-attention's logits | Raffel et al. 2020, section 2.1 |
| `NoPositions` | nowhere: the model is permutation-equivariant | |

Those inside attention act in self-attention alone: source and target of cross-attention have no common positions.

One of your own is a frozen dataclass below `Positions`. It says what is added to the embeddings (`encoding`), what
happens inside self-attention (`in_attention`), or both.
"""

import dataclasses

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import Positive, Size
from transformer_jax.attention.position_biases import ALiBi, RelativeBias
from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.positions import (
    AttentionPositions,
    LearnedEncoding,
    PositionalEncoding,
    Positions,
    positions_of,
)


@dataclasses.dataclass(frozen=True)
class SinusoidalPositions(Positions):
    """Sines and cosines added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    def encoding(self, d_model: int, max_len: int) -> PositionalEncoding:
        return PositionalEncoding(d_model, max_len)


@dataclasses.dataclass(frozen=True)
class LearnedPositions(Positions):
    """A learned vector for each position, added to the embeddings (Gehring et al. 2017, section 3.1).

    Raises:
        InputError: `max_len` is below 1.
    """

    max_len: Size | None = None  # positions that are learned; None: as many as the model accepts

    def encoding(self, d_model: int, max_len: int) -> LearnedEncoding:
        return LearnedEncoding(d_model, max_len if self.max_len is None else min(self.max_len, max_len))


@dataclasses.dataclass(frozen=True)
class RotaryPositions(Positions):
    """Queries and keys rotated by angles that grow with their position (Su et al. 2021).

    Raises:
        InputError: `base` is no finite number above 0; at use, a head has an odd width.
    """

    base: Positive = 10_000.0  # what the angles' frequencies are powers of

    def check(self, head_width: int) -> None:
        check_even(head_width)

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions:
        return RotaryInAttention(float(self.base))


@dataclasses.dataclass(frozen=True)
class ALiBiPositions(Positions):
    """Logits lowered in proportion to the distance, by another slope in each head (Press et al. 2022).

    Where queries look ahead too, as in an encoder, the distance is the absolute one.
    """

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions:
        return ALiBiInAttention(num_heads)


@dataclasses.dataclass(frozen=True)
class RelativePositions(Positions):
    """A learned number added to the logits for each head and bucket of distances (Raffel et al. 2020, section 2.1).

    Each block has a table of its own; in T5 the blocks of a stack share one.

    Raises:
        InputError: `num_buckets` is odd or below 4, or `max_distance` is no more than the exact buckets' distances.
    """

    num_buckets: int = 32  # of distances; half of them for keys after the query, where it sees such
    max_distance: int = 128  # from which on all distances share a bucket

    def __post_init__(self) -> None:
        check_sizes(4, num_buckets=self.num_buckets)
        if self.num_buckets % 2:
            raise InputError(f"num_buckets is {self.num_buckets}; it must be even, as each direction has half of them")
        check_sizes(self.num_buckets // 2 + 1, max_distance=self.max_distance)

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions:
        return RelativeInAttention(num_heads, looks_ahead, self.num_buckets, self.max_distance)


class RotaryInAttention(AttentionPositions):
    """`rotate` of queries and keys."""

    base: float = 10_000.0

    def encode(self, x: Float[Array, "B heads T d"], first: Start, length: int) -> Float[Array, "B heads T d"]:
        return rotate(x, first, length, self.base)


class ALiBiInAttention(AttentionPositions):
    """The bias `ALiBi`."""

    num_heads: int  # H

    def bias(self) -> ALiBi:
        return ALiBi(self.num_heads)


class RelativeInAttention(AttentionPositions):
    """The bias `RelativeBias` with a table that is learned; it starts at zero."""

    num_heads: int  # H
    looks_ahead: bool
    num_buckets: int
    max_distance: int

    def setup(self) -> None:
        # Named as other embeddings are, which weight decay spares.
        self.embedding = self.param("embedding", nn.initializers.zeros, (self.num_buckets, self.num_heads))

    def bias(self) -> RelativeBias:
        return RelativeBias(self.embedding, self.looks_ahead, self.max_distance)


def check_even(head_width: int) -> None:
    """Raise an `InputError` if the width of a head is odd, so that its elements make no pairs."""
    if head_width % 2:
        raise InputError(
            f"a head is {head_width} wide, model_dim / num_heads; rotary positions turn pairs, so it must be even"
        )


def rotary_table(length: int, head_width: int, base: float = 10_000.0) -> Float[np.ndarray, "T d"]:
    """Cosines, then sines, of the angles `pos · base^(-2i/d)`, i = 0 … d/2 - 1 (Su et al. 2021, section 3.3).

    Computed in float64 and rounded once to float32.
    """
    check_even(head_width)
    frequency = base ** (-np.arange(0, head_width, 2) / head_width)  # [d/2]
    angle = np.arange(length)[:, None] * frequency
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


def rotate(
    x: Float[Array, "*leading T d"], first: Start = 0, length: int | None = None, base: float = 10_000.0
) -> Float[Array, "*leading T d"]:
    """Turn the pair (x_2i, x_2i+1) of each position by its angle `pos · base^(-2i/d)` (Su et al. 2021, equation 34).

    The product of a query and a key then depends on the difference of their positions alone.

    Args:
        x: queries or keys `[..., T, d]`; the position of the first is `first`, which may be traced.
        first: position of the first, 0 … length - T.
        length: number of positions that there can be; None: T.
        base: what the angles' frequencies are powers of.

    Raises:
        InputError: d is odd, or `first` is known and outside of its range.
    """
    *_, num, width = x.shape
    table = positions_of(rotary_table(length or num, width, base), first, num)
    cos, sin = table[:, : width // 2], table[:, width // 2 :]  # [T d/2]
    pairs = x.reshape(*x.shape[:-1], width // 2, 2)
    even, odd = pairs[..., 0], pairs[..., 1]
    rotated = jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)  # float32 or wider
    return rotated.reshape(x.shape).astype(x.dtype)
