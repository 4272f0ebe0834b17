"""Blockwise attention: values and gradients without storing the weights `[T, S]`, in memory that grows as T + S.

Keys are processed in blocks, with a running maximum and sum for each query (Rabe and Staats 2021; Dao et al. 2022). The
backward pass recomputes the weights of each block from the log-sum-exp of each query's logits. Blocks that a mask
forbids entirely are skipped, unless there is only one block of keys.

The computation of one block is in `block_steps.py`, the sizes and the order of the blocks in `block_layout.py`.
"""

import dataclasses
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int, UInt32

from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.block_layout import (
    BlockLists,
    BlockSizes,
    Part,
    choose_block_sizes,
    fill_blocks,
    join_blocks,
    list_blocks,
    over_rows,
    split_blocks,
)
from transformer_jax.attention.block_steps import (
    Gradients,
    QueryBlock,
    Row,
    Running,
    backward_step,
    forward_step,
    query_blocks,
)
from transformer_jax.attention.masks.symbolic import AttentionMask
from transformer_jax.attention.score_block import BlockGrid
from transformer_jax.dropout import AttentionDropout, first_row_of_part
from transformer_jax.mesh_axis import partitioned_by_xla


@dataclasses.dataclass(frozen=True)
class Plan:
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


Values = Float[Array, "N H T d_v"]
LogSumExp = Float[Array, "N H T"]  # of each query's logits; -∞ for a query that sees no key
Saved = tuple[Operands, Constants, Values, LogSumExp]
# gradients of the bias, and of a row's keys and values [w, S]
Sums = tuple[AttentionBias | None, Array, Array]


def blockwise_attention(
    q: Float[Array, "N H T d"],
    k: Float[Array, "N Hkv S d"],
    v: Float[Array, "N Hkv S d_v"],
    mask: AttentionMask | None,
    bias: AttentionBias | None,
    dropout: AttentionDropout | None,
    num_batch: int,
    sizes: BlockSizes | None = None,
) -> Values:
    """Compute the values of attention block by block.

    Args:
        q: queries; `q`, `k` and `v` have the same floating-point dtype.
        k: keys; Hkv divides H, and query head h reads head `h // (H / Hkv)`.
        v: values.
        mask: mask for B batch elements.
        bias: bias for B batch elements.
        dropout: dropout of the weights; None for none.
        num_batch: B, a divisor of N; element n uses the mask and the bias of element `n % B`.
        sizes: block sizes; None for those of `choose_block_sizes`.
    """
    rate, seeds = (
        (0.0, jnp.zeros(2, jnp.uint32)) if dropout is None else (dropout.rate, dropout.seeds())
    )
    sizes = sizes or choose_block_sizes(mask, q.shape[2], k.shape[2])
    plan = Plan(float(rate), num_batch, sizes, partitioned_by_xla.get())
    constants = Constants(mask, seeds, first_row_of_part(math.prod(q.shape[:3])))
    return _attend_compiled(plan, Operands(q, k, v, bias), constants)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, operands: Operands, constants: Constants) -> Values:
    return _forward(plan, operands, constants)[0]


_attend_compiled = jax.jit(_attend, static_argnums=0)  # calls outside of `jit` compile once


def _forward(plan: Plan, operands: Operands, constants: Constants) -> tuple[Values, LogSumExp]:
    q, k, v = _in_blocks(plan, operands)
    wide = jnp.promote_types(q.dtype, jnp.float32)

    def of_row(
        total: None, arguments: tuple[Array, Array, Array, Array]
    ) -> tuple[None, tuple[Array, Array]]:
        index, q, k, v = arguments
        row, lists = _row(plan, operands, constants, index)

        def of_queries(arguments: tuple[Array, Array]) -> tuple[Array, Array]:
            i, q = arguments

            def step(part: Part, so_far: Running) -> Running:
                return forward_step(row, i, part, so_far, q, k, v)

            shape = q.shape[:-1]
            start = Running(
                jnp.zeros((*shape, v.shape[-1]), wide),
                jnp.full(shape, np.finfo(wide).min),
                jnp.zeros(shape, wide),
            )
            values, maximum, total = lists.visit(i, step, start)
            sees_nothing = total == 0
            total = jnp.where(sees_nothing, 1, total)
            values = values / (total * (1 - plan.dropout_rate))[..., None]
            log_sum_exp = jnp.where(sees_nothing, -jnp.inf, maximum * row.scale + jnp.log(total))
            return values.astype(q.dtype), log_sum_exp

        return total, lax.map(of_queries, (jnp.arange(len(q)), q))

    _, (values, log_sum_exp) = over_rows(
        of_row, None, (_row_numbers(k), q, k, v), all_at_once=plan.all_at_once
    )
    return join_blocks(values, operands.q), join_blocks(log_sum_exp[..., None], operands.q)[..., 0]


def _attend_forward(plan: Plan, operands: Operands, constants: Constants) -> tuple[Values, Saved]:
    values, log_sum_exp = _forward(plan, operands, constants)
    return values, (operands, constants, values, log_sum_exp)


def _attend_backward(plan: Plan, saved: Saved, of_values: Values) -> tuple[Operands, None]:
    operands, constants, values, log_sum_exp = saved
    delta = jnp.sum(of_values.astype(log_sum_exp.dtype) * values, -1)
    seen = jnp.where(jnp.isneginf(log_sum_exp), jnp.inf, log_sum_exp)
    q, k, v = _in_blocks(plan, operands)
    start = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=_wide(x)), operands.bias)
    rows = _row_numbers(k), query_blocks(q, of_values, seen, delta), k, v

    def of_row(
        total: AttentionBias | None, arguments: tuple[Array, QueryBlock, Array, Array]
    ) -> tuple[AttentionBias | None, tuple[Array, Array, Array]]:
        """Compute the gradients of one row: bias (added to `total`), queries in blocks, keys and values."""
        index, queries, k, v = arguments
        row, lists = _row(plan, operands, constants, index)
        wide = _wide(k)

        def of_queries(sums: Sums, arguments: tuple[Array, QueryBlock]) -> tuple[Sums, Array]:
            i, of = arguments

            def step(part: Part, so_far: Gradients) -> Gradients:
                return backward_step(row, i, part, so_far, of, k, v)

            total, of_k, of_v = sums
            result = lists.visit(i, step, Gradients(jnp.zeros(of.q.shape, wide), of_k, of_v, total))
            return (result.bias, result.k, result.v), result.q

        sums = total, jnp.zeros(k.shape[::-1], wide), jnp.zeros(v.shape[::-1], wide)
        (total, of_k, of_v), of_q = lax.scan(
            of_queries, sums, (jnp.arange(len(queries.q)), queries)
        )
        return total, (of_q, of_k, of_v)

    total, (of_q, of_k, of_v) = over_rows(of_row, start, rows, all_at_once=plan.all_at_once)
    factor = 1 / math.sqrt(k.shape[-1])
    of_k, of_v = (x[..., : operands.k.shape[2]].swapaxes(-1, -2) for x in (of_k, of_v))
    gradients = Operands(join_blocks(of_q, operands.q) * factor, of_k * factor, of_v, total)
    return jax.tree.map(lambda x, old: x.astype(old.dtype), gradients, operands), None


_attend.defvjp(_attend_forward, _attend_backward)


def _row_numbers(k: Float[Array, "N Hkv S d"]) -> Int[Array, "N Hkv"]:
    return jnp.arange(k.shape[0] * k.shape[1]).reshape(k.shape[:2])


def _row(
    plan: Plan, operands: Operands, constants: Constants, index: Array
) -> tuple[Row, BlockLists]:
    (_, num_heads, num_queries, width), num_groups = operands.q.shape, operands.k.shape[1]
    group = num_heads // num_groups
    batch, sizes = index // num_groups % plan.num_batch, plan.sizes
    grid = BlockGrid(batch, num_queries, operands.k.shape[2], sizes.queries, sizes.keys)
    first_weights = constants.first_weights + index.astype(jnp.uint32) * np.uint32(
        group * num_queries
    )
    first_head, mask = index % num_groups * group, constants.mask
    row = Row(
        grid,
        mask,
        operands.bias,
        first_head,
        group,
        width,
        plan.dropout_rate,
        constants.seeds,
        first_weights,
    )
    return row, list_blocks(mask, grid, sizes)


def _wide(x: Array) -> np.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _in_blocks(plan: Plan, operands: Operands) -> tuple[Array, Array, Array]:
    """Split the queries into blocks `[N, Hkv, nq, G, q, d]`, and pad queries, keys and values to whole blocks."""
    group = operands.q.shape[1] // operands.k.shape[1]
    q = split_blocks(operands.q, group, plan.sizes.queries)
    k, v = (fill_blocks(x, plan.sizes.keys) for x in (operands.k, operands.v))
    return q, k, v
