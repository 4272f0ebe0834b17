"""Attention by one of three implementations: plain, blockwise or fused. `explain` says which one runs, and why."""

import math
from typing import Any, Literal

import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Shaped

from transformer_jax.attention.biases import (
    AttentionFunction,
    BiasArgument,
    Biases,
    as_attention_bias,
)
from transformer_jax.attention.blockwise import blockwise_attention
from transformer_jax.attention.formula import Tap, plain_attention, weighted_values
from transformer_jax.attention.fused import fused_attention, fused_refusal
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.attention.request import (
    AttentionRequest,
    Explanation,
    checked_request,
    record_attention,
    with_batch_and_heads,
)
from transformer_jax.dropout import AttentionDropout
from transformer_jax.errors import InputError, check_value
from transformer_jax.trees import shown

Implementation = Literal["auto", "plain", "blockwise", "fused"]
Values = Float[Array, "... T d_v"]
ValuesAndWeights = tuple[Values, Float[Array, "... T S"]]
# On CPUs, blockwise attention is faster from this number of logits per head on, if the logits of all heads and batch
# elements together exceed the cache (docs/attention.md).
MIN_BLOCKWISE_LOGITS = 320 * 320
MIN_BLOCKWISE_TOTAL = 3_250_000
MIN_FUSED_LOGITS = 128 * 128  # below, XLA compiles attention together with the operations around it


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
) -> Values | ValuesAndWeights:
    """Attend to `v` by the similarity of `q` and `k`: `softmax(bias(Q Kᵀ / √d)) V` (Vaswani et al. 2017, equation 1).

    All implementations compute the same values and gradients, and drop the same weights:

    - `plain` computes all weights at once. Only it supports all arguments, second derivatives and forward mode.
    - `blockwise` computes the weights block by block, and recomputes them in the backward pass: its memory grows as
      T + S, and blocks that the mask forbids are skipped. The gradient of a bias array is stored once per batch element
      and head computed at once: 1 on CPUs, up to 64 on accelerators, all of a device on a mesh that splits parameters.
    - `fused` runs the kernels of cuDNN on GPUs and of JAX on TPUs. They support some dtypes, widths and masks only.

    `auto` chooses `plain` if the weights are requested; else `fused` from 128 × 128 logits per head on, if a kernel
    supports the arguments; else `blockwise` from 320 × 320 logits per head and 3.25 million in total on; else `plain`.
    The softmax is computed in float32 or wider. A query that may not see any key gets zeros and zero gradients. Keys
    and values that a query may not see do not change its result if they are finite; NaN or infinity makes it NaN.

    Args:
        q: queries `[..., T, d]`; the leading axes are none, `[B]`, `[B, H]`, or more before these.
        k: keys `[..., S, d]`, with the leading axes of `q`. With a head axis, they and the values may have fewer
            heads, Hkv, a divisor of H: head h of the queries reads head `h // (H / Hkv)` (Ainslie et al. 2023).
        v: values `[..., S, d_v]`.
        mask: which keys a query may see: a value such as `Causal() & Padding(valid)`, or an array; see
            `transformer_jax.attention.masks.arrays` for the ranks.
        bias: added to the logits before the mask: a value such as `ALiBi(num_heads)`, or an array of the same ranks as
            a mask.
        dropout: dropout of the weights; None for none.
        implementation: auto, plain, blockwise or fused.
        return_attention: also return the weights `[..., T, S]`, after dropout.
        tap: the method `tap` of a module. Plain attention passes its logits (after the bias, before the mask) and its
            weights to it, and continues with the arrays that it returns; a returned logit of -∞ hides the key.

    Returns:
        The values `[..., T, d_v]`; with `return_attention` a pair of the values and the weights `[..., T, S]`.

    Raises:
        InputError: shapes do not match or contain a 0, an operand is not numeric, a mask or a bias does not broadcast
            or has a result of the wrong type, or the implementation does not support the arguments.
    """
    check_value("tap", tap, Tap | None)
    request = checked_request(q, k, v, mask, bias, dropout, return_attention)
    explanation = _choose(request, implementation if tap is None else "plain")
    record_attention(explanation)
    q, k, v = (jnp.asarray(x) for x in promote_dtype(q, k, v, dtype=None))  # to one floating type
    arguments = request.mask, request.bias, request.dropout
    if explanation.implementation == "plain":
        values, weights = plain_attention(q, k, v, *arguments, tap=tap)
        return (values, weights) if return_attention else values
    operands = with_batch_and_heads(q, k, v)
    if explanation.implementation == "fused":
        values = fused_attention(*operands, request)
    else:
        values = blockwise_attention(*operands, *arguments, request.num_batch)
    return values.reshape(*request.logits_shape[:-2], *values.shape[-2:])


def attend_by_function(
    function: AttentionFunction,
    q: Float[Array, "B H T d"],
    k: Float[Array, "B Hkv S d"],
    v: Float[Array, "B Hkv S d"],
    mask: Masks | None,
    bias: Biases | None,
    dropout: AttentionDropout | None,
    *,
    return_attention: bool,
    tap: Tap | None,
) -> Float[Array, "B H T d"] | tuple[Float[Array, "B H T d"], Float[Array, "B H T S"]]:
    """Call an attention function of a user, which gets the bias as a `BiasArgument`.

    `return_attention` and `tap` are those of `dot_product_attention`; `tap` gets the weights only.

    Raises:
        InputError: the function ignores the bias, or returns no weights though they are needed.
    """
    argument = None
    if bias is not None:
        logits_shape = (*q.shape[:-1], k.shape[-2])  # B H T S
        argument = BiasArgument(as_attention_bias(bias), logits_shape)
    result = function(q, k, v, mask, argument, dropout)
    if argument is not None and not argument.is_read:
        raise InputError(
            f"implementation is {shown(function)}, which ignores the bias {argument.bias}; it must"
            " compute logits + bias; if it cannot, choose other positions, such as"
            " RotaryPositions()"
        )
    values, weights = result if isinstance(result, tuple) else (result, None)
    if not return_attention and tap is None:
        return values
    if weights is None:
        raise InputError(
            f"implementation is {shown(function)}, which returns no weights; it must return"
            " (values, weights), or choose auto or plain"
        )
    if tap is not None:
        tapped = tap("weights", weights, "B H T S")
        if tapped is not weights:  # patched
            values = weighted_values(tapped, v)
            weights = tapped
    return (values, weights) if return_attention else values


def scaled_dot_product(
    q: Shaped[ArrayLike, "... T d"],
    k: Shaped[ArrayLike, "... S d"],
    v: Shaped[ArrayLike, "... S d_v"],
    mask: Masks | None = None,
) -> ValuesAndWeights:
    """Values and weights of plain `dot_product_attention`: `softmax(Q Kᵀ / √d) V`, and the softmax."""
    result: Any = dot_product_attention(q, k, v, mask, return_attention=True)
    return result


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
    """Explain which implementation `dot_product_attention` runs for these arguments, and why it runs no other.

    Args:
        q: array, or anything with a shape and a dtype, such as `jax.ShapeDtypeStruct`.
        k, v, mask, bias, dropout, implementation, return_attention: as in `dot_product_attention`.
        backend: cpu, cuda or tpu; None for JAX's default backend.

    Raises:
        InputError: as in `dot_product_attention`.
    """
    request = checked_request(q, k, v, mask, bias, dropout, return_attention, backend)
    return _choose(request, implementation)


def _choose(request: AttentionRequest, implementation: str) -> Explanation:
    check_value("implementation", implementation, Implementation)
    refusals = {"plain": None, "blockwise": None, "fused": fused_refusal(request)}
    if request.wants_attention:
        refusals["blockwise"] = "it returns no weights; attention_rows computes chosen rows"
    if implementation == "auto":
        chosen, reason, otherwise = _suited(request, refusals["fused"])
    else:
        chosen = implementation
        reason = "it was requested"
        otherwise = "another one was requested"
    if refusals[chosen]:
        raise InputError(f"{chosen} attention cannot run: {refusals[chosen]}")
    others = {name: refusal or otherwise for name, refusal in refusals.items() if name != chosen}
    return Explanation(chosen, reason, others, request.logits_shape[-2:])


def _suited(request: AttentionRequest, fused_refusal: str | None) -> tuple[str, str, str]:
    """Choice of `auto`, the reason for it, and the reason against the other implementations that could run."""
    num_per_head = math.prod(request.logits_shape[-2:])
    if request.wants_attention:
        return "plain", "the weights are requested", "it returns no weights"
    if fused_refusal is None and num_per_head >= MIN_FUSED_LOGITS:
        return "fused", "the kernel takes this mask, type and width", "fused is faster"
    is_large = math.prod(request.logits_shape) >= MIN_BLOCKWISE_TOTAL
    if is_large and num_per_head >= MIN_BLOCKWISE_LOGITS:
        return "blockwise", "its memory grows as T + S", "plain is slower for so many logits"
    return "plain", "there are few logits", "plain is faster for few logits"
