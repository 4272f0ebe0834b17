"""Computation of blockwise attention for one block: a step of the running softmax, and of its gradient."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Shaped, UInt32

from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.block_layout import Part, split_blocks
from transformer_jax.attention.masks.symbolic import AttentionMask
from transformer_jax.attention.score_block import (
    BlockGrid,
    Range,
    ScoreBlock,
    nan_for_minus_infinity,
)
from transformer_jax.dropout import is_kept

Queries = Float[Array, "G q d"]  # of the G query heads that share one head of keys and values
Keys = Float[Array, "k d"]
Values = Float[Array, "k d_v"]
Logits = Float[Array, "G q k"]


class Running(NamedTuple):
    """State of the running softmax over the keys seen so far; the attention values are `values / total`."""

    values: Float[Array, "G q d_v"]
    maximum: Float[Array, "G q"]  # of the logits, without `Row.scale`
    total: Float[Array, "G q"]


class Gradients(NamedTuple):
    """Gradients summed over the blocks seen so far, without the factor 1/√d of queries and keys."""

    q: Queries  # of this query block
    k: Float[Array, "d S"]  # of all keys; transposed for faster products
    v: Float[Array, "d_v S"]
    bias: AttentionBias | None  # instance whose arrays are gradients


@dataclasses.dataclass(frozen=True)
class Row:
    """One batch element and one head of keys and values, with the G query heads that share it."""

    grid: BlockGrid
    mask: AttentionMask | None
    bias: AttentionBias | None
    first_head: Array  # index of the first of the G query heads
    group: int  # G
    width: int  # d
    dropout_rate: float
    seeds: UInt32[Array, " 2"]  # of the dropout
    # index of the first of this row's rows of weights, over all batch elements
    first_weights: UInt32[Array, ""]

    def block(self, query_block: Array, part: Part) -> ScoreBlock:
        """Return the indices of a part of a query block."""
        size = self.grid.query_size
        queries = Range(query_block * size + part.first, size - part.first)
        return ScoreBlock(
            Range(self.grid.batch, 1), Range(self.first_head, self.group), queries, part.keys
        )

    @property
    def scale(self) -> float:
        """Factor still to be applied to `logits`: 1/√d, or 1 with a bias, which is added to scaled logits."""
        return 1 / math.sqrt(self.width) if self.bias is None else 1.0

    def logits(self, q: Queries, k: Keys) -> Logits:
        """Return the logits of a block without the bias, still to be multiplied by `scale`."""
        logits = jnp.einsum(
            "gqd,kd->gqk", q, k, preferred_element_type=jnp.promote_types(q.dtype, jnp.float32)
        )
        logits = nan_for_minus_infinity(logits)
        return logits if self.bias is None else logits * (1 / math.sqrt(self.width))

    def seen(self, logits: Logits, block: ScoreBlock) -> Logits:
        """Set the logits to -∞ if the query may not see the key."""
        allowed: Array | None = None if self.mask is None else self.mask.allows(block)
        if self.grid.num_keys % self.grid.key_size:  # the last block extends beyond the keys
            is_key = block.indices().key < self.grid.num_keys
            allowed = is_key if allowed is None else allowed & is_key
        return logits if allowed is None else jnp.where(allowed[0], logits, -jnp.inf)

    def is_kept(self, block: ScoreBlock) -> Bool[Array, "G q k"]:
        """Return which weights of a block dropout keeps."""
        at = block.indices()
        head = jnp.arange(self.group, dtype=jnp.uint32)[:, None, None]
        rows = (
            self.first_weights
            + head * np.uint32(self.grid.num_queries)
            + at.query[0].astype(jnp.uint32)
        )
        return is_kept(self.dropout_rate, self.seeds, rows, at.key[0].astype(jnp.uint32))


def forward_step(
    row: Row, query_block: Array, part: Part, so_far: Running, q: Queries, k: Keys, v: Values
) -> Running:
    """Update the running softmax of a query block with a part of the keys of this row."""
    of_part = Running(*(x[:, part.first :] for x in so_far))
    block, k, v = row.block(query_block, part), _in_range(k, part.keys), _in_range(v, part.keys)
    logits = row.logits(q[:, part.first :], k)
    if row.bias is not None:
        logits = row.bias.cut(block).apply(logits[None], block)[0]
    if part.is_mixed:
        logits = row.seen(logits, block)
    maximum = jnp.maximum(of_part.maximum, logits.max(-1))
    weights = jnp.exp((logits - maximum[..., None]) * row.scale)
    rescale = jnp.exp((of_part.maximum - maximum) * row.scale)
    total = of_part.total * rescale + weights.sum(-1)
    if row.dropout_rate:
        weights = jnp.where(row.is_kept(block), weights, 0)
    values = jnp.einsum(
        "gqk,kd->gqd", weights.astype(v.dtype), v, preferred_element_type=logits.dtype
    )
    new = Running(of_part.values * rescale[..., None] + values, maximum, total)
    return Running(*map(_with_last, so_far, new))


class QueryBlock(NamedTuple):
    """Inputs of the backward pass for one query block."""

    q: Queries
    q_transposed: Float[Array, "d G q"]
    of_values: Float[Array, "G q d_v"]  # cotangent
    of_values_transposed: Float[Array, "d_v G q"]
    log_sum_exp: Float[Array, "G q"]  # +∞ for a query that sees no key
    delta: Float[Array, "G q"]  # sum of the products of values and their cotangents

    def since(self, first: int) -> "QueryBlock":
        """Drop the queries before `first`."""
        axes = 1, 2, 1, 2, 1, 1  # of the queries
        return QueryBlock(
            *(
                lax.slice_in_dim(x, first, None, axis=axis)
                for x, axis in zip(self, axes, strict=True)
            )
        )


def query_blocks(
    q: Float[Array, "N Hkv nq G q d"],
    of_values: Float[Array, "N H T d_v"],
    log_sum_exp: Float[Array, "N H T"],
    delta: Float[Array, "N H T"],
) -> QueryBlock:
    """Inputs of the backward pass for all query blocks, `[N, Hkv, nq, ...]`; `q` is already split into blocks."""
    group, size = q.shape[3:5]
    # Queries beyond T, which pad the last block, get weights of 0 whatever the bias.
    beyond = -log_sum_exp.shape[2] % size
    log_sum_exp = jnp.pad(log_sum_exp, ((0, 0), (0, 0), (0, beyond)), constant_values=jnp.inf)
    of_values, *of_queries = (
        split_blocks(x, group, size) for x in (of_values, log_sum_exp[..., None], delta[..., None])
    )
    # [N Hkv nq w G q]
    q_transposed, of_values_transposed = (jnp.moveaxis(x, -1, 3) for x in (q, of_values))
    return QueryBlock(
        q, q_transposed, of_values, of_values_transposed, *(x[..., 0] for x in of_queries)
    )


def backward_step(
    row: Row, query_block: Array, part: Part, so_far: Gradients, of: QueryBlock, k: Keys, v: Values
) -> Gradients:
    """Add the gradients that a query block contributes through a part of the keys of this row."""
    of, block = of.since(part.first), row.block(query_block, part)
    k, v = _in_range(k, part.keys), _in_range(v, part.keys)
    logits = row.logits(of.q, k)
    if row.bias is not None:
        logits, of_logits = jax.vjp(
            lambda x, bias: bias.apply(x[None], block)[0], logits, row.bias.cut(block)
        )
    if part.is_mixed:
        logits = row.seen(logits, block)
    wide = logits.dtype
    weights = jnp.exp(logits * row.scale - of.log_sum_exp[..., None])
    of_weights = jnp.einsum("gqd,kd->gqk", of.of_values, v, preferred_element_type=wide)
    dropped = weights
    if row.dropout_rate:
        factor = jnp.where(row.is_kept(block), 1 / (1 - row.dropout_rate), 0).astype(wide)
        dropped, of_weights = weights * factor, of_weights * factor
    cotangent, bias = weights * (of_weights - of.delta[..., None]), so_far.bias
    if bias is not None:
        cotangent, of_bias = of_logits(cotangent)
        bias = bias.add_cut(of_bias, block)
    cotangent = cotangent.astype(of.q.dtype)
    of_q = jnp.einsum("gqk,kd->gqd", cotangent, k, preferred_element_type=wide)
    # With queries and cotangents transposed, the products run twice as fast.
    of_k = _product(of.q_transposed, cotangent, wide)
    of_v = _product(of.of_values_transposed, dropped.astype(v.dtype), wide)
    q = _with_last(so_far.q, so_far.q[:, part.first :] + of_q)
    return Gradients(q, _added(so_far.k, of_k, part.keys), _added(so_far.v, of_v, part.keys), bias)


def _product(
    transposed: Float[Array, "w G q"], of_logits: Logits, wide: np.dtype
) -> Float[Array, "w k"]:
    columns, rows = (
        transposed.reshape(len(transposed), -1),
        of_logits.reshape(-1, of_logits.shape[-1]),
    )
    return jnp.einsum("wr,rk->wk", columns, rows, preferred_element_type=wide)


def _with_last(
    old: Float[Array, "G q ..."], new: Float[Array, "G part ..."]
) -> Float[Array, "G q ..."]:
    """Replace the last queries of an array."""
    first = old.shape[1] - new.shape[1]
    return old.at[:, first:].set(new) if first else new


def _in_range(x: Shaped[Array, "S w"], keys: Range) -> Shaped[Array, "k w"]:
    return lax.dynamic_slice_in_dim(x, *keys, allow_negative_indices=False)


def _added(
    total: Float[Array, "w S"], part: Float[Array, "w k"], keys: Range
) -> Float[Array, "w S"]:
    old = lax.dynamic_slice_in_dim(total, *keys, axis=1, allow_negative_indices=False)
    return lax.dynamic_update_slice_in_dim(
        total, old + part, keys.start, axis=1, allow_negative_indices=False
    )
