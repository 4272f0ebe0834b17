"""Computation of blockwise attention for one block: a step of the running softmax, and of its gradient."""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Bool, Float, Int, Shaped, UInt32

from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.block_layout import BlockSizes, Part
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
OfQueries = Float[Array, "G q"]


class Plan(NamedTuple):
    """Static settings of a blockwise attention, besides shapes, mask and bias."""

    dropout_rate: float
    num_batch: int  # B of the mask and the bias; N of the operands is a multiple of it
    sizes: BlockSizes
    # do not loop over rows, since the compiler cannot partition a loop over devices
    all_at_once: bool


class Operands(NamedTuple):
    """Differentiable inputs."""

    q: Float[Array, "N H T d"]
    k: Float[Array, "N Hkv S d"]
    v: Float[Array, "N Hkv S d_v"]
    bias: AttentionBias | None


class Constants(NamedTuple):
    """Inputs without a gradient."""

    mask: AttentionMask | None
    seeds: UInt32[Array, " 2"]  # of the dropout
    first_weights: UInt32[Array, ""]  # index of the first row of weights among those of all devices


class Running(NamedTuple):
    """State of the running softmax over the keys seen so far; the attention values are `values / total`."""

    values: Float[Array, "G q d_v"]
    maximum: OfQueries  # of the logits
    total: OfQueries


class QueryBlock(NamedTuple):
    """Inputs of the backward pass for one query block."""

    q: Queries
    values_cotangent: Float[Array, "G q d_v"]
    log_sum_exp: OfQueries  # +∞ for a query that sees no key
    delta: OfQueries  # sum of the products of values and their cotangents


class Gradients(NamedTuple):
    """Gradients summed over the blocks seen so far, without the factor 1/√d of queries and keys."""

    q: Queries  # of this query block
    k: Float[Array, "d S"]  # of all keys; transposed for faster products
    v: Float[Array, "d_v S"]
    bias: AttentionBias | None  # instance whose arrays are gradients


class Row(NamedTuple):
    """One batch element and one head of keys and values, with the G query heads that share it."""

    plan: Plan
    operands: Operands
    constants: Constants
    element: Int[Array, ""]  # index of the batch element, below N
    head: Int[Array, ""]  # index of the head of keys and values, below Hkv

    def grid(self) -> BlockGrid:
        """Return the grid of the row's blocks."""
        num_queries = self.operands.q.shape[2]
        num_keys = self.operands.k.shape[2]
        batch = self.element % self.plan.num_batch
        sizes = self.plan.sizes
        return BlockGrid(batch, num_queries, num_keys, sizes.queries, sizes.keys)

    def block(self, query_block: Array, part: Part) -> ScoreBlock:
        """Return the indices of a part of a query block."""
        grid = self.grid()
        group = self.operands.q.shape[1] // self.operands.k.shape[1]  # G
        heads = Range(self.head * group, group)
        first_query = query_block * grid.query_size + part.first
        queries = Range(first_query, grid.query_size - part.first)
        return ScoreBlock(Range(grid.batch, 1), heads, queries, part.keys)

    def seen(self, logits: Logits, block: ScoreBlock) -> Logits:
        """Set the logits to -∞ if the query may not see the key."""
        num_keys = self.operands.k.shape[2]
        is_seen = block.indices().key[0] < num_keys  # the last block may extend beyond the keys
        mask = self.constants.mask
        if mask is not None:
            is_seen = is_seen & mask.allows(block)[0]
        return jnp.where(is_seen, logits, -jnp.inf)

    def is_kept(self, block: ScoreBlock) -> Bool[Array, "G q k"]:
        """Return which weights of a block dropout keeps."""
        _, num_heads, num_queries, _ = self.operands.q.shape
        index = jax.tree.map(lambda indices: indices[0].astype(jnp.uint32), block.indices())
        element = self.element.astype(jnp.uint32)
        head = element * num_heads + index.head  # among those of all elements
        row = head * num_queries + index.query + self.constants.first_weights
        return is_kept(self.plan.dropout_rate, self.constants.seeds, row, index.key)


def scaled_products(q: Queries, k: Keys) -> Logits:
    """Return the logits of a block without the bias, in float32 or wider."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    logits = jnp.einsum("gqd,kd->gqk", q, k, preferred_element_type=wide)
    return nan_for_minus_infinity(logits) * (1 / math.sqrt(q.shape[-1]))


def forward_step(
    row: Row, query_block: Array, part: Part, running: Running, q: Queries, k: Keys, v: Values
) -> Running:
    """Update the running softmax of a query block with a part of the keys of this row."""
    running_of_part = Running(*(x[:, part.first :] for x in running))
    block = row.block(query_block, part)
    k, v = _in_range(k, part.keys), _in_range(v, part.keys)
    logits = scaled_products(q[:, part.first :], k)
    bias = row.operands.bias
    if bias is not None:
        logits = bias.cut(block).apply(logits[None], block)[0]
    if part.is_mixed:
        logits = row.seen(logits, block)
    maximum = jnp.maximum(running_of_part.maximum, logits.max(-1))
    weights = jnp.exp(logits - maximum[..., None])
    rescale = jnp.exp(running_of_part.maximum - maximum)
    total = running_of_part.total * rescale + weights.sum(-1)
    if row.plan.dropout_rate:
        weights = jnp.where(row.is_kept(block), weights, 0)
    values = jnp.einsum(
        "gqk,kd->gqd", weights.astype(v.dtype), v, preferred_element_type=logits.dtype
    )
    values = running_of_part.values * rescale[..., None] + values
    return Running(
        values=_with_last(running.values, values),
        maximum=_with_last(running.maximum, maximum),
        total=_with_last(running.total, total),
    )


def backward_step(
    row: Row,
    number: Array,
    part: Part,
    sums: Gradients,
    query_block: QueryBlock,
    k: Keys,
    v: Values,
) -> Gradients:
    """Add the gradients that a query block contributes through a part of the keys of this row."""
    block = row.block(number, part)
    k, v = _in_range(k, part.keys), _in_range(v, part.keys)
    q, values_cotangent, log_sum_exp, delta = (x[:, part.first :] for x in query_block)
    logits = scaled_products(q, k)
    bias = row.operands.bias
    if bias is not None:
        logits, bias_vjp = jax.vjp(
            lambda x, bias: bias.apply(x[None], block)[0], logits, bias.cut(block)
        )
    if part.is_mixed:
        logits = row.seen(logits, block)
    wide = logits.dtype
    weights = jnp.exp(logits - log_sum_exp[..., None])
    weights_cotangent = jnp.einsum("gqd,kd->gqk", values_cotangent, v, preferred_element_type=wide)
    dropped = weights
    rate = row.plan.dropout_rate
    if rate:
        factor = jnp.where(row.is_kept(block), 1 / (1 - rate), 0).astype(wide)
        dropped = weights * factor
        weights_cotangent = weights_cotangent * factor
    logits_cotangent = weights * (weights_cotangent - delta[..., None])
    bias_gradient = sums.bias
    if bias_gradient is not None:
        logits_cotangent, part_of_bias = bias_vjp(logits_cotangent)
        bias_gradient = bias_gradient.add_cut(part_of_bias, block)
    logits_cotangent = logits_cotangent.astype(q.dtype)
    q_gradient = jnp.einsum("gqk,kd->gqd", logits_cotangent, k, preferred_element_type=wide)
    product = partial(jnp.einsum, "gqw,gqk->wk", preferred_element_type=wide)
    k_gradient = product(q, logits_cotangent)
    v_gradient = product(values_cotangent, dropped.astype(v.dtype))
    return Gradients(
        q=_with_last(sums.q, sums.q[:, part.first :] + q_gradient),
        k=_added(sums.k, k_gradient, part.keys),
        v=_added(sums.v, v_gradient, part.keys),
        bias=bias_gradient,
    )


def _with_last(
    old: Float[Array, "G q ..."], new: Float[Array, "G part ..."]
) -> Float[Array, "G q ..."]:
    """Replace the last queries of an array."""
    first = old.shape[1] - new.shape[1]
    return old.at[:, first:].set(new) if first else new


def _in_range(x: Shaped[Array, "S w"], keys: Range) -> Shaped[Array, "k w"]:
    return lax.dynamic_slice_in_dim(x, *keys)


def _added(
    total: Float[Array, "w S"], part: Float[Array, "w k"], keys: Range
) -> Float[Array, "w S"]:
    old = lax.dynamic_slice_in_dim(total, *keys, axis=1)
    return lax.dynamic_update_slice_in_dim(total, old + part, keys.start, axis=1)
