"""The formula of attention, `softmax(Q Kᵀ / √d) V` (Vaswani et al. 2017, equation 1), with all weights at once."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from transformer_jax.attention.biases import AttentionBias, apply_bias
from transformer_jax.attention.masks.symbolic import Masks, mask_array
from transformer_jax.attention.score_block import nan_for_minus_infinity
from transformer_jax.dropout import AttentionDropout as AttentionDropout

Logits = Float[Array, "... T S"]
Tap = Callable[[str, Array, str], Array]  # `tap` of a module: name, activation, letters


def plain_attention(
    q: Float[Array, "... T d"],
    k: Float[Array, "... S d"],
    v: Float[Array, "... S d_v"],
    mask: Masks | None = None,
    bias: AttentionBias | None = None,
    dropout: AttentionDropout | None = None,
    *,
    tap: Tap | None = None,
) -> tuple[Float[Array, "... T d_v"], Logits]:
    """Return values and weights (after dropout). All operands have one float dtype; `k` and `v` may have fewer heads.

    `tap`, the method of a module, receives the logits (after the bias, before the mask) and the weights, and returns
    those to continue with. A returned logit of -∞ hides the key, as a mask does.

    Raises:
        InputError: a mask or a bias does not broadcast.
    """
    wide = jnp.promote_types(q.dtype, jnp.float32)
    logits = products(q, k, wide) / math.sqrt(q.shape[-1])  # [... T S]
    logits, is_seen = with_mask_and_bias(logits, mask, bias, tap)
    weights = softmax(logits, is_seen)
    if dropout is not None:
        weights = jnp.where(dropout.keeps(weights.shape), weights / (1 - dropout.rate), 0)
    weights = weights.astype(v.dtype)
    if tap is not None:
        weights = tap("weights", weights, "B H T S")
    return weighted_values(weights, v), weights


def with_mask_and_bias(
    logits: Logits, mask: Masks | None, bias: AttentionBias | None, tap: Tap | None
) -> tuple[Logits, Bool[Array, "..."] | None]:
    """Return the logits with their bias, and which keys each query sees; None if no key can be hidden."""
    if mask is None and bias is None and tap is None:
        return logits, None
    is_seen = None if mask is None else mask_array(mask, logits.shape)
    # From here on, -∞ hides a key. A -∞ of the product itself becomes NaN, as in `softmax` without hidden keys.
    logits = nan_for_minus_infinity(logits)
    if bias is None and tap is None:
        return logits, is_seen
    if bias is not None:
        logits = apply_bias(logits, bias)
    if tap is not None:
        logits = tap("logits", logits, "B H T S")
    is_finite = logits != -jnp.inf  # a bias or a patch may hide keys too
    if is_seen is None:
        return logits, is_finite
    return logits, is_seen & is_finite


# `jax.nn.softmax` has this derivative only if `jax_softmax_custom_jvp` is set, which is not the default. Without it,
# attention on CPUs takes 1.5 times as long, with a mask 1.75 times.
@jax.custom_jvp
def softmax(logits: Logits, is_seen: Bool[Array, "..."] | None) -> Logits:
    """Softmax over the seen keys, zeros for a query that sees none; over all keys if `is_seen` is None, NaN for -∞."""
    if is_seen is None:
        maximum = logits.max(-1, keepdims=True)
        # NaN if a logit of the row is -∞, else 0; a test of each logit would take 1.15 times as long on CPUs
        zero_or_nan = 0 * logits.min(-1, keepdims=True)
        weights = jnp.exp(logits - (maximum + zero_or_nan))
        return weights / weights.sum(-1, keepdims=True)
    logits = jnp.where(is_seen, logits, -jnp.inf)
    maximum = logits.max(-1, keepdims=True)
    finite_maximum = jnp.maximum(maximum, np.finfo(logits.dtype).min)
    weights = jnp.exp(logits - finite_maximum)
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)


@softmax.defjvp
def _softmax_tangent(
    primals: tuple[Array, Array | None], tangents: tuple[Array, Any]
) -> tuple[Logits, Logits]:
    weights, is_seen, tangent = softmax(*primals), primals[1], tangents[0]
    if is_seen is not None:
        tangent = jnp.where(is_seen, tangent, 0)  # that of a bias may be infinite at a hidden key
    mean = (weights * tangent).sum(-1, keepdims=True)
    return weights, weights * (tangent - mean)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def products(
    q: Float[Array, "... T d"], k: Float[Array, "... S d"], dtype: np.dtype | None
) -> Logits:
    """Compute `Q Kᵀ` in `dtype`; its derivative is computed in the dtype of `q` and `k`, which is faster."""
    q_groups, k_groups = in_groups(q, k)  # [... Hkv H/Hkv T d], [... Hkv 1 S d]
    result = jnp.einsum("...td,...sd->...ts", q_groups, k_groups, preferred_element_type=dtype)
    return result.reshape(*q.shape[:-1], k.shape[-2])


@products.defjvp
def _products_tangent(
    dtype: np.dtype | None, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Logits, Logits]:
    q, k = primals
    q_tangent, k_tangent = tangents
    logits = products(q, k, dtype)
    tangent = products(q_tangent, k, None) + products(q, k_tangent, None)
    return logits, tangent.astype(logits.dtype)


def weighted_values(weights: Logits, v: Float[Array, "... S d_v"]) -> Float[Array, "... T d_v"]:
    """Sum the values of all keys, with the weights of each query."""
    groups, v_groups = in_groups(weights, v)  # [... Hkv H/Hkv T S], [... Hkv 1 S d_v]
    result = jnp.einsum("...ts,...sd->...td", groups, v_groups)
    return result.reshape(*weights.shape[:-1], v.shape[-1])


def in_groups(x: Array, y: Array) -> tuple[Array, Array]:
    """Let `y`, if it has fewer heads than `x`, broadcast against groups of the heads of `x`.

    The shapes become `[..., H_y, H_x / H_y, T, x]` and `[..., H_y, 1, S, y]`.
    """
    has_fewer_heads = x.ndim > 3 and 1 < y.shape[-3] < x.shape[-3]
    if not has_fewer_heads:
        return x, y
    *leading, num_heads, length, width = x.shape
    num_groups = y.shape[-3]
    groups = x.reshape(*leading, num_groups, num_heads // num_groups, length, width)
    return groups, y[..., None, :, :]
