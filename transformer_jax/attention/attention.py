"""Attention by the implementation that suits: plain, blockwise or fused. `explain` says which, and why."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped

from transformer_jax.attention.biases import Biases
from transformer_jax.attention.blockwise import blockwise_attention
from transformer_jax.attention.formula import Tap, plain_attention
from transformer_jax.attention.fused import fused_attention, fused_refusal
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.attention.request import AttentionRequest, Explanation, record_attention
from transformer_jax.dropout import AttentionDropout
from transformer_jax.errors import InputError, check_value

Implementation = Literal["auto", "plain", "blockwise", "fused"]
# Blockwise attention is faster on CPUs from so many logits of one head on, where all of them together are more than a
# cache holds (docs/attention.md).
MIN_BLOCKWISE_LOGITS = 320 * 320
MIN_BLOCKWISE_TOTAL = 3_250_000
MIN_FUSED_LOGITS = 128 * 128  # fewer stay in one program with what is around them


def dot_product_attention(
    q: Shaped[ArrayLike, "... T d"],
    k: Shaped[ArrayLike, "... S d"],
    v: Shaped[ArrayLike, "... S d_v"],
    mask: Masks | None = None,
    bias: Biases | None = None,
    dropout: AttentionDropout | None = None,
    *,
    implementation: Implementation = "auto",
    return_attention: bool = False,
    tap: Tap | None = None,
) -> Float[Array, "... T d_v"] | tuple[Float[Array, "... T d_v"], Float[Array, "... T S"]]:
    """Attend to `v` by the similarity of `q` and `k`: `softmax(bias(Q Kᵀ / √d)) V` (Vaswani et al. 2017, equation 1).

    The implementations agree, in values, gradients and what dropout drops:

    - `plain` computes all weights at once, and takes everything. Only it differentiates twice or forward.
    - `blockwise` computes blocks of them, again in the backward pass: its memory grows as T + S, and blocks that the
      mask empties are not computed. The gradient of a bias that is an array is held once for each batch element and
      head computed at once: one on CPUs, up to 64 elsewhere, all of a device on a mesh that splits parameters.
    - `fused` runs the kernels of cuDNN on GPUs and of JAX on TPUs, for some types, widths and masks.

    `auto` takes `plain` where weights are asked for, else `fused` where it can, else `blockwise` from 320 × 320 logits
    of each head and 3.25 million of all heads and batch elements on. The softmax is in float32 or wider for any type. A
    query that may see nothing gets zeros and zero gradients. Which finite keys and values a query may not see has no
    effect on its result; NaN or infinity there gives NaN, since their weight of zero times infinity is NaN.

    Args:
        q: queries `[..., T, d]`; the leading axes are none, `[B]`, `[B, H]`, or more before these.
        k: keys `[..., S, d]`, with the leading axes of `q`. With a head axis, they and the values may have fewer
            heads, Hkv, a divisor of H: head h of the queries reads head `h // (H / Hkv)` (Ainslie et al. 2023).
        v: values `[..., S, d_v]`.
        mask: which keys a query may see: a value such as `Causal() & Padding(valid)`, or an array; see
            `transformer_jax.attention.masks.arrays` for the ranks.
        bias: what is added to the logits before the mask: a value such as `ALiBi(num_heads)`, or an array of the ranks
            of masks.
        dropout: of the weights.
        implementation: auto, plain, blockwise or fused.
        return_attention: also return the weights `[..., T, S]`, as they were used, dropout and all.
        tap: that of a module: plain attention runs, and computes on with what this gives for its logits (after the
            bias, before the mask; -∞ hides a key) and its weights.

    Returns:
        The values `[..., T, d_v]`, with `return_attention` a pair of them and the weights `[..., T, S]`.

    Raises:
        InputError: shapes do not fit or hold a 0, an operand holds no numbers, a mask or a bias does not fit or gives
            something else than truth values or logits; or the implementation cannot do what is asked.
    """
    check_value("tap", tap, Tap | None)
    request = AttentionRequest.of(q, k, v, mask, bias, dropout, return_attention)
    explanation = _choose(request, implementation if tap is None else "plain")
    record_attention(explanation)
    q, k, v = (jnp.asarray(x) for x in promote_dtype(q, k, v, dtype=None))  # to one floating type
    if explanation.implementation == "plain":
        values, attention = plain_attention(q, k, v, request.mask, request.bias, request.dropout, tap=tap)
        return (values, attention) if return_attention else values
    operands = request.with_heads(q, k, v)
    if explanation.implementation == "fused":
        values = fused_attention(*operands, request)
    else:
        values = blockwise_attention(*operands, request.mask, request.bias, request.dropout, request.num_batch)
    return values.reshape(*request.logits_shape[:-2], *values.shape[-2:])


def scaled_dot_product(
    q: Shaped[ArrayLike, "... T d"],
    k: Shaped[ArrayLike, "... S d"],
    v: Shaped[ArrayLike, "... S d_v"],
    mask: Masks | None = None,
) -> tuple[Float[Array, "... T d_v"], Float[Array, "... T S"]]:
    """Values and weights of plain `dot_product_attention`: `softmax(Q Kᵀ / √d) V`, and the softmax."""
    result: Any = dot_product_attention(q, k, v, mask, return_attention=True)
    return result[0], result[1]


def explain(
    q: Any,
    k: Any,
    v: Any,
    mask: Masks | None = None,
    bias: Biases | None = None,
    *,
    dropout: AttentionDropout | None = None,
    implementation: Implementation = "auto",
    return_attention: bool = False,
    backend: str | None = None,
) -> Explanation:
    """Which implementation `dot_product_attention` runs for these arguments, and why the others do not.

    Args:
        q: array, or anything with a shape and a dtype, such as `jax.ShapeDtypeStruct`.
        k, v, mask, bias, dropout, implementation, return_attention: as in `dot_product_attention`.
        backend: cpu, cuda or tpu; None for that of this process.

    Raises:
        InputError: as `dot_product_attention`.
    """
    return _choose(AttentionRequest.of(q, k, v, mask, bias, dropout, return_attention, backend), implementation)


def _choose(request: AttentionRequest, implementation: str) -> Explanation:
    check_value("implementation", implementation, Implementation)
    no_weights = "it has no weights; attention_rows gives those of chosen queries" if request.wants_attention else None
    refusals = {"plain": None, "blockwise": no_weights, "fused": fused_refusal(request)}
    if implementation != "auto":
        if reason := refusals[implementation]:
            raise InputError(f"implementation is {implementation!r}, which cannot run: {reason}")
        chosen, reason, otherwise = implementation, "it was asked for", "another was asked for"
    else:
        chosen, reason, otherwise = _suited(request, refusals)
    others = {name: refusal or otherwise for name, refusal in refusals.items() if name != chosen}
    return Explanation(chosen, reason, others, request.logits_shape[-2:])


def _suited(request: AttentionRequest, refusals: Mapping[str, str | None]) -> tuple[str, str, str]:
    """What `auto` takes, the reason for it, and that against others that could run too."""
    num_logits = math.prod(request.logits_shape[-2:])
    if request.wants_attention:
        return "plain", "the weights are asked for", "it has no weights"
    if refusals["fused"] is None and num_logits >= MIN_FUSED_LOGITS:
        return "fused", "the kernel takes this mask, type and width", "fused is faster"
    if num_logits >= MIN_BLOCKWISE_LOGITS and math.prod(request.logits_shape) >= MIN_BLOCKWISE_TOTAL:
        return "blockwise", "its memory grows as T + S", "so many at once are slower"
    return "plain", "they are few", "plain is faster for few"
