"""The formula of attention: `softmax(Q Kᵀ / √d) V` (Vaswani et al. 2017, equation 1), with a mask, a bias and dropout.

All weights `[..., T, S]` are computed at once.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from transformer_jax.attention.biases import AttentionBias, apply_bias
from transformer_jax.attention.masks.symbolic import Masks, as_attention_mask
from transformer_jax.attention.score_block import MISSING_AXES, nan_for_minus_infinity, whole_block
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
) -> tuple[Float[Array, "... T d_v"], Float[Array, "... T S"]]:
    """Return values and weights (after dropout). All operands have one float dtype; `k` and `v` may have fewer heads.

    `tap`, the method of a module, receives the logits (after the bias, before the mask) and the weights, and returns
    those to continue with. A returned logit of -∞ hides the key, as a mask does.

    Raises:
        InputError: a mask or a bias does not broadcast.
    """
    logits = _products(q, k) / math.sqrt(q.shape[-1])  # [..., T, S]
    seen = None if mask is None else mask_array(mask, logits.shape)
    if not (mask is None and bias is None and tap is None):
        # From here on, -∞ hides a key. A -∞ of the product itself becomes NaN, as in `softmax` without hidden keys.
        logits = nan_for_minus_infinity(logits)
    if bias is not None:
        logits = apply_bias(logits, bias)
    if tap is not None:
        logits = tap("logits", logits, "B H T S")
    if bias is not None or tap is not None:
        finite = logits != -jnp.inf  # a bias or a patch may hide keys too
        seen = finite if seen is None else seen & finite
    weights = softmax(logits, seen)
    if dropout is not None:
        weights = jnp.where(dropout.keeps(weights.shape), weights / (1 - dropout.rate), 0)
    weights = weights.astype(v.dtype)
    if tap is not None:
        weights = tap("weights", weights, "B H T S")
    of_groups, v = by_shared_head(weights, v)
    return (
        jnp.einsum("...ts,...sd->...td", of_groups, v).reshape(*weights.shape[:-1], v.shape[-1]),
        weights,
    )


def mask_array(mask: Masks, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """Convert a mask to an array that broadcasts against logits of shape `[..., T, S]`.

    Raises:
        InputError: the mask does not broadcast.
    """
    mask = as_attention_mask(mask)
    mask.check(shape)
    is_seen = mask.allows(whole_block(shape))  # rank 4; the logits may have fewer axes
    return jnp.squeeze(is_seen, MISSING_AXES.get(len(shape), ()))


def by_shared_head(x: Array, y: Array) -> tuple[Array, Array]:
    """If Hkv < H, reshape `[..., H, T, x]` to `[..., Hkv, H / Hkv, T, x]`, and let `[..., Hkv, S, y]` broadcast."""
    if not (x.ndim > 3 and y.ndim > 3 and 1 < y.shape[-3] < x.shape[-3]):
        return x, y
    *leading, num_heads, length, width = x.shape
    return (
        x.reshape(*leading, y.shape[-3], num_heads // y.shape[-3], length, width),
        y[..., None, :, :],
    )


@jax.custom_jvp
def _products(q: Array, k: Array) -> Logits:
    """Compute `Q Kᵀ` in float32 or wider; its derivative multiplies operands of the dtype of `q` and `k`."""
    of_groups, k = by_shared_head(q, k)
    wide = jnp.promote_types(q.dtype, jnp.float32)
    products = jnp.einsum("...td,...sd->...ts", of_groups, k, preferred_element_type=wide)
    return products.reshape(*q.shape[:-1], k.shape[-2])


@_products.defjvp
def _products_tangent(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Logits, Logits]:
    def in_their_type(q: Array, k: Array) -> Array:
        of_groups, k = by_shared_head(q, k)
        return jnp.einsum("...td,...sd->...ts", of_groups, k)

    logits = _products(*primals)
    _, tangent = jax.jvp(in_their_type, primals, tangents)
    return logits, tangent.astype(logits.dtype).reshape(logits.shape)


# `jax.nn.softmax` has this derivative only if `jax_softmax_custom_jvp` is set, which is not the default. Without it,
# attention on CPUs takes 1.5 times as long, with a mask 1.75 times.
@jax.custom_jvp
def softmax(logits: Logits, seen: Bool[Array, "..."] | None) -> Logits:
    """Softmax over the seen keys, zeros for a query that sees none; over all keys if `seen` is None, NaN for -∞."""
    # 0 · -∞ is NaN; testing each logit would make attention on CPUs 1.15 times as slow
    if seen is None:
        maximum = logits.max(-1, keepdims=True) + 0 * logits.min(-1, keepdims=True)
        weights = jnp.exp(logits - maximum)
        return weights / weights.sum(-1, keepdims=True)
    logits = jnp.where(seen, logits, -jnp.inf)
    weights = jnp.exp(
        logits - jnp.maximum(logits.max(-1, keepdims=True), np.finfo(logits.dtype).min)
    )
    total = weights.sum(-1, keepdims=True)
    return weights / jnp.where(total == 0, 1, total)


@softmax.defjvp
def _softmax_tangent(
    primals: tuple[Array, Array | None], tangents: tuple[Array, Any]
) -> tuple[Logits, Logits]:
    weights = softmax(*primals)
    of_logits, _ = tangents
    if primals[1] is not None:
        # the derivative of a bias may be infinite at a hidden key
        of_logits = jnp.where(primals[1], of_logits, 0)
    return weights, weights * (of_logits - (weights * of_logits).sum(-1, keepdims=True))
