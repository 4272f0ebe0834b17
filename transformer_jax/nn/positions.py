"""Positional encoding: base class of its kinds, and modules that add positions to embeddings."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Size, check_fields, check_offset, check_sequence
from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.nn.layers import Features, FeaturesLike, Tapped, add_bias

First = Start | Int[ArrayLike, "B T"]  # position of the first element, or of each element
Heads = Float[Array, "B heads T d"]  # queries or keys
# `first` in a module's call; `nn/cached_decoding.py` replaces it by the first new position
FIRST_OF_PASS = 0


def sinusoidal_table(
    length: int, d_model: int, *, in_halves: bool = False
) -> Float[np.ndarray, "T D"]:
    """Compute `PE[pos, 2i] = sin(pos / 10000^(2i/D))`, `PE[pos, 2i+1] = cos(pos / 10000^(2i/D))`.

    The table is computed in float64 and rounded once to float32. An odd D ends with a sine. With `in_halves`, all
    sines precede all cosines; else they alternate.

    Raises:
        InputError: `length` or `d_model` is below 1.
    """
    check_sizes(length=length, d_model=d_model)
    position = np.arange(length)[:, None]  # [T 1]
    frequency = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)  # [ceil(D/2)]
    angle = position * frequency  # [T ceil(D/2)]
    sines, cosines = np.sin(angle), np.cos(angle[:, : d_model // 2])
    if in_halves:
        return np.concatenate([sines, cosines], axis=1).astype(np.float32)
    table = np.empty((length, d_model), np.float32)
    table[:, 0::2], table[:, 1::2] = sines, cosines
    return table


def positions_of(
    table: Float[ArrayLike, "length w"], first: First, num: int
) -> Float[Array, "*B num w"]:
    """Return the rows `first` … `first + num - 1` of a table, or those of an array of positions `[B, T]`.

    A row outside the table is an `InputError` if `first` is a known number.
    """
    table = jnp.asarray(table)
    if jnp.ndim(first) == 2:  # gradients are summed in float32 or wider
        wide = table.astype(jnp.promote_types(table.dtype, jnp.float32))
        return jnp.take(wide, jnp.asarray(first), axis=0).astype(table.dtype)
    check_offset("first", first, 0, len(table) - num)
    return jax.lax.dynamic_slice_in_dim(table, first, num)


class AddedPositions(Tapped):
    """Add a vector to each element of a sequence by its position. A subclass defines `table`."""

    d_model: Size  # D
    max_len: Size = 5000  # longest sequence that is accepted

    def __call__(
        self, x: FeaturesLike, first: First = FIRST_OF_PASS, length: int | None = None
    ) -> Features:
        """Add the positions `first` … `first + T - 1` of `length` (None: T), or `first` `[B, T]`, to `x` `[B, T, D]`.

        Raises:
            InputError: `x` is not a floating-point array `[B, T, D]`; `length` is above `max_len`; or `first` is
                known and outside 0 … length - T.
        """
        check_sequence("x", x, self.d_model)
        x = jnp.asarray(x)
        length = length or x.shape[1]
        if length > self.max_len:
            raise InputError(
                f"the sequence has {length} positions; it may have at most max_len, {self.max_len}"
            )
        table = positions_of(self.table(length), first, x.shape[1])
        x = self.tap("token_embeddings", x, "B T D")
        if self.is_requested("positions"):
            table = self.tap("positions", jnp.broadcast_to(table, x.shape), "B T D")
        from transformer_jax.nn.for_gpus import in_row_order  # its argument, laid out for GPUs

        return in_row_order(add_bias(x, table))

    def table(self, length: int) -> Float[Array | np.ndarray, "T D"]:
        """Return the vectors of the positions 0 … length - 1."""
        raise NotImplementedError


class PositionalEncoding(AddedPositions):
    """Add sinusoidal positions to a sequence. Their table is a constant of the program, not part of checkpoints."""

    in_halves: bool = False  # all sines, then all cosines; else they alternate

    def table(self, length: int) -> Float[np.ndarray, "T D"]:
        return sinusoidal_table(length, self.d_model, in_halves=self.in_halves)


class AttentionPositions(nn.Module):
    """Base class of positions inside self-attention: rotated queries and keys, a bias of the logits, or both."""

    def encode(self, x: Heads, first: First, length: int) -> Heads:
        """Encode the positions `first` … `first + T - 1` of `length` in queries or keys; `first` may be traced."""
        return x

    def bias(self) -> AttentionBias | None:
        """Return the bias of the logits, or None; its method `shifted` gives the bias for later queries."""
        return None


@dataclasses.dataclass(frozen=True)
class Positions:
    """Base class of the kinds of positional encoding. It adds no positions. An invalid field is an `InputError`."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_in_attention(self) -> bool:
        """Whether a subclass overrides `in_attention`."""
        return type(self).in_attention is not Positions.in_attention

    def check(self, head_width: int) -> None:
        """Raise an `InputError` if heads of this width are not supported."""

    def encoding(self, d_model: int, max_len: int) -> AddedPositions | None:
        """Return the module that adds up to `max_len` positions to embeddings of width D; None adds nothing."""
        return None

    def in_attention(self, num_heads: int, looks_ahead: bool) -> AttentionPositions | None:
        """Return the module for the self-attention of a block, whose queries may see later keys or not; or None."""
        return None

    def in_stack(self, num_heads: int, looks_ahead: bool) -> AttentionPositions | None:
        """Return the module whose bias the self-attention of all blocks of a stack shares, or None."""
        return None


@dataclasses.dataclass(frozen=True)
class NoPositions(Positions):
    """No positions. Without a causal mask, permuting a sequence permutes the outputs."""


@dataclasses.dataclass(frozen=True)
class SinusoidalPositions(Positions):
    """Sinusoidal positions, added to the embeddings (Vaswani et al. 2017, section 3.5)."""

    in_halves: bool = False  # all sines, then all cosines, as in Marian; else they alternate

    def encoding(self, d_model: int, max_len: int) -> PositionalEncoding:
        return PositionalEncoding(d_model, max_len, self.in_halves)
