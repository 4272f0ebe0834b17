"""Attention weights of selected queries and heads, for sequences of any length."""

import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Shaped

from transformer_jax.argument_checks import as_array
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.block_steps import scaled_products
from transformer_jax.attention.formula import softmax
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.attention.request import checked_request, with_batch_and_heads
from transformer_jax.attention.score_block import Chosen, Range, ScoreBlock
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
    request = checked_request(q, k, k, mask, bias)
    *leading, num_queries, num_keys = request.logits_shape
    has_heads = len(leading) > 1
    if heads is not None and not has_heads:
        raise InputError(
            f"heads is {shortened(heads)}; logits of shape {request.logits_shape} have no axis of"
            " heads"
        )
    q, k = (jnp.asarray(x) for x in promote_dtype(q, k, dtype=None))
    q, k, _ = with_batch_and_heads(q, k, k)
    queries = _indices("queries", queries, num_queries)
    heads = _indices("heads", heads, q.shape[1])
    group = q.shape[1] // k.shape[1]

    def row(number: Array, head: Array, query: Array) -> Float[Array, " S"]:
        logits = scaled_products(q[number, head, query, None, None], k[number, head // group])[None]
        batch = number % request.num_batch
        block = ScoreBlock(Range(batch, 1), Range(head, 1), Range(query, 1), Range(0, num_keys))
        if request.bias is not None:
            logits = request.bias.cut(block).apply(logits, block)
        is_seen = logits != -jnp.inf  # a bias may hide keys too
        if request.mask is not None:
            is_seen &= request.mask.allows(block)
        return softmax(logits, is_seen)[0, 0, 0]

    rows_of_head = jax.vmap(row, (None, None, 0))  # [rows S]
    rows_of_heads = jax.vmap(rows_of_head, (None, 0, None))  # [heads rows S]
    rows: Array = jax.lax.map(
        lambda number: rows_of_heads(number, heads, queries), jnp.arange(len(q))
    )
    if has_heads:
        leading[-1] = len(heads)
    return rows.astype(q.dtype).reshape(*leading, len(queries), num_keys)


def _indices(name: str, indices: Chosen | None, length: int) -> Int[Array, " n"]:
    if indices is None:
        return jnp.arange(length)
    array = as_array(name, indices)
    if array.ndim != 1 or not array.size or not jnp.issubdtype(array.dtype, jnp.integer):
        raise InputError(
            f"{name} has type {array.dtype} and shape {array.shape}; it must be indices [n], at"
            " least one"
        )
    for index in [] if isinstance(array, jax.core.Tracer) else array.tolist():
        if not 0 <= index < length:
            raise InputError(f"{name} holds {index}; indices may be 0 … {length - 1}")
    return jnp.asarray(array)
