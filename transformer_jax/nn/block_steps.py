"""The work of blockwise attention on one block: a step of the running softmax, and of its gradient."""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float, Shaped, UInt32

from transformer_jax.nn.attention_dropout import kept
from transformer_jax.nn.attention_masks import AttentionMask
from transformer_jax.nn.biases import AttentionBias
from transformer_jax.nn.leaves import join, join_gradients, split
from transformer_jax.nn.score_block import BlockGrid, Range, ScoreBlock

Queries = Float[Array, "G q d"]  # of the G query heads that share a head of keys and values
Keys = Float[Array, "k d"]
Values = Float[Array, "k d_v"]
Logits = Float[Array, "G q k"]


class Running(NamedTuple):
    """Softmax of the keys seen so far, of each query: `values / total`."""

    values: Float[Array, "G q d_v"]
    maximum: Float[Array, "G q"]  # of the logits, without `Row.scale`
    total: Float[Array, "G q"]


class Gradients(NamedTuple):
    """Gradients summed over the blocks seen so far, but for the factor 1/√d of queries and keys."""

    q: Queries  # of this block of queries
    k: Float[Array, "nk d k"]  # of all blocks of keys; transposed, which makes the products fast
    v: Float[Array, "nk d_v k"]
    bias: Any  # as the bias, or None


@dataclasses.dataclass(frozen=True)
class Row:
    """One batch element and one head of keys and values, with the G heads of queries that share it."""

    grid: BlockGrid
    mask: AttentionMask | None
    bias: AttentionBias | None
    first_head: Array  # of the G
    group: int  # G
    width: int  # d
    dropout_rate: float
    seeds: UInt32[Array, " 2"]  # of the dropout
    first_weights: UInt32[Array, ""]  # index of this row's first row of weights, among those of all batch elements

    def block(self, query_block: Array, key_block: Array) -> ScoreBlock:
        """The ranges of a block of this row."""
        grid = self.grid
        queries = Range(query_block * grid.query_size, grid.query_size)
        return ScoreBlock(
            Range(grid.batch, 1),
            Range(self.first_head, self.group),
            queries,
            Range(key_block * grid.key_size, grid.key_size),
        )

    @property
    def scale(self) -> float:
        """Factor still to be applied to `logits`: 1/√d inside the exponential; 1 with a bias, which comes after it."""
        return 1 / math.sqrt(self.width) if self.bias is None else 1.0

    def logits(self, q: Queries, k: Keys) -> Logits:
        """Logits of a block without the bias, to be multiplied by `scale`."""
        logits = jnp.einsum("gqd,kd->gqk", q, k, preferred_element_type=jnp.promote_types(q.dtype, jnp.float32))
        return logits if self.bias is None else logits * (1 / math.sqrt(self.width))

    def seen(self, logits: Logits, block: ScoreBlock) -> Logits:
        """The logits, -∞ where a query may not see a key."""
        allowed: Array = block.indices().key < self.grid.num_keys
        if self.mask is not None:
            allowed = allowed & self.mask.allows(block)
        return jnp.where(allowed[0], logits, -jnp.inf)

    def kept(self, block: ScoreBlock) -> Bool[Array, "G q k"]:
        """The weights of a block that dropout keeps."""
        at = block.indices()
        head = jnp.arange(self.group, dtype=jnp.uint32)[:, None, None]
        rows = self.first_weights + head * np.uint32(self.grid.num_queries) + at.query[0].astype(jnp.uint32)
        return kept(self.dropout_rate, self.seeds, rows, at.key[0].astype(jnp.uint32))


def forward_step(
    row: Row, block: ScoreBlock, is_mixed: bool, so_far: Running, q: Queries, k: Keys, v: Values
) -> Running:
    """Add a block of keys to the running softmax."""
    logits = row.logits(q, k)
    if row.bias is not None:
        logits = row.bias.cut(block).apply(logits[None], block)[0]
    if is_mixed:
        logits = row.seen(logits, block)
    maximum = jnp.maximum(so_far.maximum, logits.max(-1))
    weights = jnp.exp((logits - maximum[..., None]) * row.scale)
    rescale = jnp.exp((so_far.maximum - maximum) * row.scale)
    total = so_far.total * rescale + weights.sum(-1)
    if row.dropout_rate:
        weights = jnp.where(row.kept(block), weights, 0)
    values = jnp.einsum("gqk,kd->gqd", weights.astype(v.dtype), v, preferred_element_type=logits.dtype)
    return Running(so_far.values * rescale[..., None] + values, maximum, total)


class QueryBlock(NamedTuple):
    """Inputs of the backward pass for one block of queries."""

    q: Queries
    q_transposed: Float[Array, "d rows"]  # of G times q rows
    of_values: Float[Array, "G q d_v"]  # cotangent
    of_values_transposed: Float[Array, "d_v rows"]
    log_sum_exp: Float[Array, "G q"]  # +∞ for a query that sees nothing
    delta: Float[Array, "G q"]  # sum of the products of values and their cotangents


def backward_step(
    row: Row, block: ScoreBlock, key_block: Array, is_mixed: bool, so_far: Gradients, of: QueryBlock, k: Keys, v: Values
) -> Gradients:
    """Add the gradients of a block of keys."""
    logits, of_logits = _with_gradient(row, block, of.q, k)
    if is_mixed:
        logits = row.seen(logits, block)
    wide = logits.dtype
    weights = jnp.exp(logits * row.scale - of.log_sum_exp[..., None])
    of_weights = jnp.einsum("gqd,kd->gqk", of.of_values, v, preferred_element_type=wide)
    dropped = weights
    if row.dropout_rate:
        factor = jnp.where(row.kept(block), 1 / (1 - row.dropout_rate), 0).astype(wide)
        dropped, of_weights = weights * factor, of_weights * factor
    cotangent, of_bias = of_logits(weights * (of_weights - of.delta[..., None]))
    cotangent = cotangent.astype(of.q.dtype)
    of_q = jnp.einsum("gqk,kd->gqd", cotangent, k, preferred_element_type=wide)
    # Of queries and values as columns, the products run twice as fast.
    of_k = _product(of.q_transposed, cotangent, wide)
    of_v = _product(of.of_values_transposed, dropped.astype(v.dtype), wide)
    bias = so_far.bias if so_far.bias is None else so_far.bias.add_cut(of_bias, block)
    return Gradients(so_far.q + of_q, _added(so_far.k, of_k, key_block), _added(so_far.v, of_v, key_block), bias)


def _product(transposed: Float[Array, "w rows"], of_logits: Logits, wide: Any) -> Float[Array, "w k"]:
    rows = of_logits.reshape(-1, of_logits.shape[-1])
    product: Array = jnp.einsum("wr,rk->wk", transposed, rows, preferred_element_type=wide)
    return product


def _added(total: Float[Array, "nk w k"], part: Float[Array, "w k"], key_block: Array) -> Float[Array, "nk w k"]:
    old = block_at(total, key_block)
    return lax.dynamic_update_slice(total, (old + part)[None], (key_block, 0, 0), allow_negative_indices=False)


def block_at(blocks: Shaped[Array, "n ..."], number: Array) -> Shaped[Array, "..."]:
    """One of several blocks; its number is not checked."""
    block: Array = lax.dynamic_index_in_dim(blocks, number, keepdims=False, allow_negative_indices=False)
    return block


def _with_gradient(row: Row, block: ScoreBlock, q: Queries, k: Keys) -> tuple[Logits, Any]:
    """Logits with the bias, and the function from their cotangent to that of those without, and of the bias."""
    plain = row.logits(q, k)
    if row.bias is None:
        return plain, lambda cotangent: (cotangent, None)
    skeleton, parameters, others = split(row.bias.cut(block))

    def biased(logits: Logits, parameters: list[Array]) -> Logits:
        result: Logits = join(skeleton, parameters, others).apply(logits[None], block)[0]
        return result

    logits, pullback = jax.vjp(biased, plain, parameters)

    def of_logits(cotangent: Logits) -> tuple[Logits, Any]:
        of_plain, of_parameters = pullback(cotangent)
        return of_plain, join_gradients(skeleton, of_parameters)

    return logits, of_logits
