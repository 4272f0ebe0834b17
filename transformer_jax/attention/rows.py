"""Attention weights of selected queries and heads, for sequences of any length."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Shaped

from transformer_jax.argument_checks import as_array, known_values
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.formula import softmax
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.attention.request import AttentionRequest
from transformer_jax.attention.score_block import Chosen, Range, ScoreBlock, nan_for_minus_infinity
from transformer_jax.errors import InputError, shortened


def attention_rows(
    q: Shaped[ArrayLike, "... T d"],
    k: Shaped[ArrayLike, "... S d"],
    mask: Masks | None = None,
    bias: Biases | None = None,
    *,
    queries: Chosen | None = None,
    heads: Chosen | None = None,
) -> Float[Array, "... rows S"]:
    """Compute exact attention weights of selected queries and heads, without dropout, in memory of their number × S.

    Args:
        q, k, mask, bias: as in `dot_product_attention`.
        queries: indices of the queries, 0 … T - 1; None for all.
        heads: indices of the heads, 0 … H - 1; None for all, or if there is no axis of heads.

    Returns:
        Weights `[..., rows, S]` of the selected queries and heads; rows of queries that see no key are zero.

    Raises:
        InputError: as in `dot_product_attention`; or an index is out of range, or `heads` is given without heads.
    """
    request = AttentionRequest.of(q, k, k, mask, bias)
    q, k = (jnp.asarray(x) for x in promote_dtype(q, k, dtype=None))
    shape = request.logits_shape
    queries = _indices("queries", np.arange(shape[-2]) if queries is None else queries, shape[-2])
    if heads is not None and len(shape) < 4:
        raise InputError(
            f"heads is {shortened(heads)}; logits of shape {shape} have no axis of heads"
        )
    q, k, _ = request.with_heads(q, k, k)
    chosen = _indices("heads", np.arange(q.shape[1]) if heads is None else heads, q.shape[1])
    group, wide = q.shape[1] // k.shape[1], jnp.promote_types(q.dtype, jnp.float32)

    def of_row(number: Array, head: Array, query: Array) -> Float[Array, " S"]:
        logits = jnp.einsum(
            "d,sd->s", q[number, head, query], k[number, head // group], preferred_element_type=wide
        )
        logits = nan_for_minus_infinity(logits)[None, None, None] / math.sqrt(q.shape[-1])
        block = ScoreBlock(
            Range(number % request.num_batch, 1),
            Range(head, 1),
            Range(query, 1),
            Range(0, shape[-1]),
        )
        if request.bias is not None:
            logits = request.bias.cut(block).apply(logits, block)
        seen = logits != -jnp.inf  # a bias may hide keys too
        return softmax(logits, seen if request.mask is None else seen & request.mask.allows(block))[
            0, 0, 0
        ]

    over_heads = jax.vmap(jax.vmap(of_row, (None, None, 0)), (None, 0, None))
    rows: Array = jax.lax.map(
        lambda number: over_heads(number, chosen, queries), jnp.arange(len(q))
    )
    leading = (*shape[:-3], len(chosen)) if len(shape) > 3 else shape[:-2]
    return rows.astype(q.dtype).reshape(*leading, len(queries), shape[-1])


def _indices(name: str, indices: Any, length: int) -> Int[Array, " n"]:
    array = as_array(name, indices)
    if array.ndim != 1 or not array.size or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(
            f"{name} has type {array.dtype} and shape {array.shape}; it must be indices [n], at"
            " least one"
        )
    known = known_values(array)
    if known is not None and (outside := known[(known < 0) | (known >= length)]).size:
        raise InputError(f"{name} holds {outside[0]}; indices may be 0 … {length - 1}")
    return jnp.asarray(array)
