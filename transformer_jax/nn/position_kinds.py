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
import math

import flax.linen as nn
from jax import Array
from jaxtyping import Float

from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.position_biases import ALiBi, RelativeBias
from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError, check_number, check_sizes
from transformer_jax.nn.positions import AddedPositions, LearnedEncoding, PositionalEncoding
from transformer_jax.nn.rotary import check_even, rotate


class AttentionPositions(nn.Module):
    """Positions inside self-attention: turned queries and keys, a bias of the logits, or both. Here neither."""

    def turned(self, x: Float[Array, "B heads T d"], first: Start, length: int) -> Float[Array, "B heads T d"]:
        """Queries or keys of the positions `first` … `first + T - 1`, as they are multiplied.

        Args:
            x: `[B, heads, T, d]`.
            first: position of the first; it may be traced.
            length: number of positions that there can be.
        """
        return x

    def bias(self) -> AttentionBias | None:
        """Bias of the logits, or None; `shifted` gives it for later queries."""
        return None


@dataclasses.dataclass(frozen=True)
class Positions:
    """Base class of the kinds of positions. It does nothing."""

    @property
    def is_in_attention(self) -> bool:
        """Whether `in_attention` is another than that of this class."""
        return type(self).in_attention is not Positions.in_attention

    def check(self, head_width: int) -> None:
        """Raise an `InputError` if it cannot work with heads of this width."""

    def encoding(self, d_model: int, max_len: int) -> AddedPositions | None:
        """Module that adds positions to embeddings of width D, of at most `max_len` positions; None for none."""
        return None

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions | None:
        """Module for the self-attention of one block; None for none.

        Args:
            num_heads: H.
            looks_ahead: whether queries may see keys after them, as in an encoder.
        """
        return None


@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """No positions. Without a causal mask a permuted sequence gets the same outputs, permuted."""


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

    max_len: int | None = None  # positions that are learned; None: as many as the model accepts

    def __post_init__(self) -> None:
        if self.max_len is not None:
            check_sizes(max_len=self.max_len)

    def encoding(self, d_model: int, max_len: int) -> LearnedEncoding:
        return LearnedEncoding(d_model, max_len if self.max_len is None else min(self.max_len, max_len))


@dataclasses.dataclass(frozen=True)
class RotaryPositions(Positions):
    """Queries and keys turned by angles that grow with their position (Su et al. 2021).

    Raises:
        InputError: `base` is no finite number above 0; at use, a head has an odd width.
    """

    base: float = 10_000.0  # what the angles' frequencies are powers of

    def __post_init__(self) -> None:
        check_number("base", self.base)
        if not 0 < self.base < math.inf:
            raise InputError(f"base is {self.base}; it must be a finite number above 0")

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

    def turned(self, x: Float[Array, "B heads T d"], first: Start, length: int) -> Float[Array, "B heads T d"]:
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
