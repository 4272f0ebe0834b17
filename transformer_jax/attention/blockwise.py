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
    rate, seeds = 0.0, jnp.zeros(2, jnp.uint32)
    if dropout is not None:
        rate, seeds = float(dropout.rate), dropout.seeds()
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

    def of_row(total: None, arguments: Any) -> tuple[None, tuple[Array, Array]]:
        element, head, q, k, v = arguments
        row, wide = Row(plan, operands, constants, element, head), _wide(q)
        lists = list_blocks(constants.mask, row.grid(), plan.sizes)

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
            log_sum_exp = jnp.where(sees_nothing, -jnp.inf, maximum + jnp.log(total))
            return values.astype(q.dtype), log_sum_exp

        return total, lax.map(of_queries, (jnp.arange(len(q)), q))

    _, results = over_rows(of_row, None, rows, all_at_once=plan.all_at_once)
    values, log_sum_exp = (join_blocks(x, operands.q) for x in results)
    return values, (operands, constants, values, log_sum_exp)


def _backward(plan: Plan, saved: Saved, of_values: Values) -> tuple[Operands, None]:
    operands, constants, values, log_sum_exp = saved
    delta = jnp.sum(of_values.astype(log_sum_exp.dtype) * values, -1)
    seen = jnp.where(jnp.isneginf(log_sum_exp), jnp.inf, log_sum_exp)
    element, head, q, k, v = _in_blocks(plan, operands)
    split = partial(split_blocks, group=q.shape[3], size=q.shape[4])
    # Queries beyond T, which fill the last block, get weights of 0 whatever the bias.
    queries = QueryBlock(q, split(of_values), split(seen, fill=jnp.inf), split(delta))
    start = jax.tree.map(lambda x: jnp.zeros_like(x, dtype=_wide(x)), operands.bias)

    def of_row(total: AttentionBias | None, arguments: Any) -> tuple[AttentionBias | None, Any]:
        """Compute the gradients of one row: bias (added to `total`), queries in blocks, keys and values."""
        element, head, queries, k, v = arguments
        row = Row(plan, operands, constants, element, head)
        lists = list_blocks(constants.mask, row.grid(), plan.sizes)

        def of_queries(
            sums: Gradients, arguments: tuple[Array, QueryBlock]
        ) -> tuple[Gradients, Array]:
            i, of = arguments

            def step(part: Part, so_far: Gradients) -> Gradients:
                return backward_step(row, i, part, so_far, of, k, v)

            result = lists.visit(i, step, sums._replace(q=jnp.zeros_like(sums.q)))
            return result, result.q

        shapes = queries.q.shape[1:], k.shape[::-1], v.shape[::-1]
        of_q, of_k, of_v = (jnp.zeros(shape, _wide(k)) for shape in shapes)
        sums = Gradients(of_q, of_k, of_v, total)
        blocks = jnp.arange(len(queries.q)), queries
        sums, of_q = lax.scan(of_queries, sums, blocks)
        return sums.bias, (of_q, sums.k, sums.v)

    rows = element, head, queries, k, v
    total, (of_q, of_k, of_v) = over_rows(of_row, start, rows, all_at_once=plan.all_at_once)
    factor = 1 / math.sqrt(k.shape[-1])
    of_k, of_v = (x[..., : operands.k.shape[2]].swapaxes(-1, -2) for x in (of_k, of_v))
    gradients = Operands(join_blocks(of_q, operands.q) * factor, of_k * factor, of_v, total)
    return jax.tree.map(lambda x, old: x.astype(old.dtype), gradients, operands), None


_attend.defvjp(_forward, _backward)


def _wide(x: Array) -> np.dtype:
    return jnp.promote_types(x.dtype, jnp.float32)


def _in_blocks(plan: Plan, operands: Operands) -> tuple[Array, ...]:
    """Return arrays `[N, Hkv, ...]`: indices of element and head, queries in blocks, keys and values padded."""
    group = operands.q.shape[1] // operands.k.shape[1]
    q = split_blocks(operands.q, group, plan.sizes.queries)
    k, v = (fill_blocks(x, plan.sizes.keys) for x in (operands.k, operands.v))
    return *jnp.indices(k.shape[:2]), q, k, v
