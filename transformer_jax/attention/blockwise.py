"""Blockwise attention: values and gradients without storing the weights `[T, S]`, in memory that grows as T + S.

Keys are processed in blocks, with a running maximum and sum for each query (Rabe and Staats 2021; Dao et al. 2022). The
backward pass recomputes the weights of each block from the log-sum-exp of each query's logits. Blocks that a mask
forbids entirely are skipped, unless there is only one block of keys.

The computation of one block is in `block_steps.py`, the sizes and the order of the blocks in `block_layout.py`.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float

from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.block_layout import (
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
    Constants,
    Gradients,
    Operands,
    Plan,
    QueryBlock,
    Row,
    Running,
    backward_step,
    forward_step,
)
from transformer_jax.attention.masks.symbolic import AttentionMask
from transformer_jax.dropout import AttentionDropout, first_row_of_part
from transformer_jax.mesh_axis import partitioned_by_xla

Values = Float[Array, "N H T d_v"]
LogSumExp = Float[Array, "N H T"]  # of each query's logits; -∞ for a query that sees no key
Saved = tuple[Operands, Constants, Values, LogSumExp]


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
    rate = 0.0
    seeds = jnp.zeros(2, jnp.uint32)
    if dropout is not None:
        rate = float(dropout.rate)
        seeds = dropout.seeds()
    sizes = sizes or choose_block_sizes(mask, q.shape[2], k.shape[2])
    plan = Plan(rate, num_batch, sizes, partitioned_by_xla.get())
    constants = Constants(mask, seeds, first_row_of_part(math.prod(q.shape[:3])))
    return _attend_compiled(plan, Operands(q, k, v, bias), constants)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend(plan: Plan, operands: Operands, constants: Constants) -> Values:
    return _forward(plan, operands, constants)[0]


_attend_compiled = jax.jit(_attend, static_argnums=0)  # calls outside of `jit` compile once


def _forward(plan: Plan, operands: Operands, constants: Constants) -> tuple[Values, Saved]:
    rows = _in_blocks(plan, operands)

    def attend_row(nothing: None, arguments: Any) -> tuple[None, tuple[Array, Array]]:
        """Compute the values `[nq, G, q, d_v]` and the log-sum-exp `[nq, G, q]` of one row."""
        element, head, q, k, v = arguments
        row = Row(plan, operands, constants, element, head)
        lists = list_blocks(constants.mask, row.grid(), plan.sizes)
        wide = _wide(q)

        def attend_block(arguments: tuple[Array, Array]) -> tuple[Array, Array]:
            query_block, q = arguments

            def step(part: Part, running: Running) -> Running:
                return forward_step(row, query_block, part, running, q, k, v)

            shape = q.shape[:-1]  # G q
            start = Running(
                jnp.zeros((*shape, v.shape[-1]), wide),
                jnp.full(shape, np.finfo(wide).min),
                jnp.zeros(shape, wide),
            )
            values, maximum, total = lists.visit(query_block, step, start)
            sees_nothing = total == 0
            total = jnp.where(sees_nothing, 1, total)
            values = values / (total * (1 - plan.dropout_rate))[..., None]
            log_sum_exp = jnp.where(sees_nothing, -jnp.inf, maximum + jnp.log(total))
            return values.astype(q.dtype), log_sum_exp

        return nothing, lax.map(attend_block, (jnp.arange(len(q)), q))

    _, results = over_rows(attend_row, None, rows, all_at_once=plan.all_at_once)
    values, log_sum_exp = (join_blocks(x, operands.q) for x in results)
    return values, (operands, constants, values, log_sum_exp)


def _backward(plan: Plan, saved: Saved, values_cotangent: Values) -> tuple[Operands, None]:
    operands, constants, values, log_sum_exp = saved
    delta = jnp.sum(values_cotangent.astype(log_sum_exp.dtype) * values, -1)
    # With +∞, queries that see no key get weights of 0.
    log_sum_exp = jnp.where(jnp.isneginf(log_sum_exp), jnp.inf, log_sum_exp)
    element, head, q, k, v = _in_blocks(plan, operands)
    split = partial(split_blocks, group=q.shape[3], size=q.shape[4])
    # Queries beyond T, which fill the last block, get weights of 0 whatever the bias.
    queries = QueryBlock(q, split(values_cotangent), split(log_sum_exp, fill=jnp.inf), split(delta))
    start = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=_wide(x)), operands.bias)

    def differentiate_row(
        total: AttentionBias | None, arguments: Any
    ) -> tuple[AttentionBias | None, Any]:
        """Compute the gradients of one row: bias (added to `total`), queries in blocks, keys and values."""
        element, head, queries, k, v = arguments
        row = Row(plan, operands, constants, element, head)
        lists = list_blocks(constants.mask, row.grid(), plan.sizes)

        def differentiate_block(
            sums: Gradients, arguments: tuple[Array, QueryBlock]
        ) -> tuple[Gradients, Array]:
            number, query_block = arguments

            def step(part: Part, sums: Gradients) -> Gradients:
                return backward_step(row, number, part, sums, query_block, k, v)

            # Each block of queries has its own gradient; those of keys, values and bias are sums.
            sums = sums._replace(q=jnp.zeros_like(sums.q))
            sums = lists.visit(number, step, sums)
            return sums, sums.q

        wide = _wide(k)
        sums = Gradients(
            q=jnp.zeros(queries.q.shape[1:], wide),
            k=jnp.zeros(k.shape[::-1], wide),
            v=jnp.zeros(v.shape[::-1], wide),
            bias=total,
        )
        blocks = jnp.arange(len(queries.q)), queries
        sums, q_gradient = lax.scan(differentiate_block, sums, blocks)
        return sums.bias, (q_gradient, sums.k, sums.v)

    rows = element, head, queries, k, v
    bias_gradient, (q_gradient, k_gradient, v_gradient) = over_rows(
        differentiate_row, start, rows, all_at_once=plan.all_at_once
    )
    factor = 1 / math.sqrt(k.shape[-1])
    num_keys = operands.k.shape[2]
    gradients = Operands(
        q=join_blocks(q_gradient, operands.q) * factor,
        k=k_gradient[..., :num_keys].swapaxes(-1, -2) * factor,
        v=v_gradient[..., :num_keys].swapaxes(-1, -2),
        bias=bias_gradient,
    )
    return jax.tree.map(lambda x, operand: x.astype(operand.dtype), gradients, operands), None


_attend.defvjp(_forward, _backward)


def _wide(x: Array) -> np.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _in_blocks(plan: Plan, operands: Operands) -> tuple[Array, ...]:
    """Return arrays `[N, Hkv, ...]`: indices of element and head, queries in blocks, keys and values padded."""
    group = operands.q.shape[1] // operands.k.shape[1]
    q = split_blocks(operands.q, group, plan.sizes.queries)
    k, v = (fill_blocks(x, plan.sizes.keys) for x in (operands.k, operands.v))
    return *jnp.indices(k.shape[:2]), q, k, v
