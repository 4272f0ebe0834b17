"""Plain attention: all weights `[..., T, S]` at once, which it returns too."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Shaped

from transformer_jax.array_checks import as_array
from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.dropout import AttentionDropout, first_row, kept
from transformer_jax.attention.masks.arrays import fit_mask
from transformer_jax.attention.masks.symbolic import AttentionMask, Masks
from transformer_jax.attention.score_block import Range, ScoreBlock
from transformer_jax.errors import InputError

Logits = Float[Array, "... T S"]
Tap = Callable[[str, Array, str], Array]  # `tap` of a module: name, activation, letters


class PlainAttention(NamedTuple):
    """Values, weights, and where it is asked for the log-sum-exp."""

    values: Float[Array, "... T d_v"]
    attention: Float[Array, "... T S"]  # the weights, after dropout
    log_sum_exp: Float[Array, "... T"] | None  # of each query's logits, -∞ where it sees nothing


def scaled_dot_product(
    q: Shaped[ArrayLike, "... T d"],
    k: Shaped[ArrayLike, "... S d"],
    v: Shaped[ArrayLike, "... S d_v"],
    mask: Masks | None = None,
) -> tuple[Float[Array, "... T d_v"], Float[Array, "... T S"]]:
    """Attend to `v` by the similarity of `q` and `k`: `softmax(Q Kᵀ / √d) V` (Vaswani et al. 2017, equation 1).

    The softmax is computed in float32 or wider for any input type. A query that may attend to nothing gets zero
    weights and zero values, and a finite gradient.

    Masked keys and values must be finite too, since their weight of zero times infinity is NaN.

    Args:
        q: queries `[..., T, d]`.
        k: keys `[..., S, d]`.
        v: values `[..., S, d_v]`.
        mask: True = may attend; an array, of the ranks in `attention.masks.arrays`, or one like `Causal()`.

    Returns:
        The values `[..., T, d_v]` and the attention weights `[..., T, S]`, each row of which sums to one.

    Raises:
        InputError: the shapes do not fit or hold a 0, an operand is boolean; or the mask has another rank, is of a
            floating-point type, or does not broadcast.
    """
    check_operands(q=q, k=k, v=v)
    q, k, v = (jnp.asarray(x) for x in promote_dtype(q, k, v, dtype=None))  # to one floating type
    result = plain_attention(q, k, v, mask)
    return result.values, result.attention


def plain_attention(
    q: Float[Array, "... T d"],
    k: Float[Array, "... S d"],
    v: Float[Array, "... S d_v"],
    mask: Masks | None = None,
    bias: AttentionBias | None = None,
    dropout: AttentionDropout | None = None,
    *,
    with_log_sum_exp: bool = False,
    tap: Tap | None = None,
) -> PlainAttention:
    """Attention of operands of one floating-point type; those of rank 4 and more may have fewer heads in `k` and `v`.

    `tap` is that of a module: it is given the logits, after the bias and before the mask, and the weights. A pair
    whose logit it makes -∞ is hidden as by a mask.

    Raises:
        InputError: a mask or a bias does not fit.
    """
    logits = _logits(q, k)
    seen = None if mask is None else fitted(mask, logits.shape)
    if bias is not None:
        logits = _biased(logits, bias)
    if tap is not None:
        logits = tap("logits", logits, "B H T S")
    if bias is not None or tap is not None:
        finite = logits != -jnp.inf  # a bias may hide a key too, and so may a patch
        seen = finite if seen is None else seen & finite
    attention = _softmax(logits, seen)
    if dropout is not None and dropout.rate > 0:
        attention = jnp.where(_kept(dropout, logits.shape), attention / (1 - dropout.rate), 0)
    attention = attention.astype(v.dtype)
    if tap is not None:
        attention = tap("weights", attention, "B H T S")
    log_sum_exp = _log_sum_exp(logits, seen) if with_log_sum_exp else None
    return PlainAttention(_weighted(attention, v), attention, log_sum_exp)


def _logits(q: Array, k: Array) -> Logits:
    wide = jnp.promote_types(q.dtype, jnp.float32)
    if _is_grouped(q, k):
        return _in_groups("...td,...sd->...ts", q, k, wide) / math.sqrt(q.shape[-1])
    return jnp.einsum("...td,...sd->...ts", q, k, preferred_element_type=wide) / math.sqrt(q.shape[-1])


def _weighted(attention: Array, v: Array) -> Array:
    if _is_grouped(attention, v):
        return _in_groups("...ts,...sd->...td", attention, v, None)
    return jnp.einsum("...ts,...sd->...td", attention, v)


def _is_grouped(x: Array, y: Array) -> bool:
    return x.ndim > 3 and y.ndim > 3 and 1 < y.shape[-3] < x.shape[-3]


def _in_groups(
    spec: str, x: Float[Array, "... H T x"], y: Float[Array, "... Hkv S y"], wide: np.dtype | None
) -> Float[Array, "... H T z"]:
    """A product in which several heads of `x` share one of `y`."""
    *leading, num_heads, length, width = x.shape
    group = num_heads // y.shape[-3]
    result = jnp.einsum(
        spec, x.reshape(*leading, -1, group, length, width), y[..., None, :, :], preferred_element_type=wide
    )  # fmt: skip
    return result.reshape(*result.shape[:-4], num_heads, *result.shape[-2:])


def whole_block(shape: tuple[int, ...]) -> ScoreBlock:
    """The block of all logits `[..., T, S]`; those of rank 3 have no heads, and those of rank 2 no batch either."""
    num_batch = {2: 1, 3: shape[0]}.get(len(shape), shape[-4] if len(shape) > 3 else 1)
    num_heads = shape[-3] if len(shape) > 3 else 1
    return ScoreBlock(*(Range(0, size) for size in (num_batch, num_heads, *shape[-2:])))


def fitted(mask: Masks, shape: tuple[int, ...]) -> Bool[Array, "..."]:
    """A mask as an array that broadcasts against logits `[..., T, S]` of a shape.

    Raises:
        InputError: it does not fit.
    """
    if not isinstance(mask, AttentionMask):
        return fit_mask(mask, shape)
    mask.check(shape)
    return fit_mask(mask.allows(whole_block(shape)), shape)


def _biased(logits: Logits, bias: AttentionBias) -> Logits:
    bias.check(logits.shape)
    block = whole_block(logits.shape)
    of_block = bias.cut(block)
    return jax.vmap(lambda part: of_block.apply(part, block))(logits.reshape(-1, *block.shape)).reshape(logits.shape)


def _kept(dropout: AttentionDropout, shape: tuple[int, ...]) -> Bool[Array, "... T S"]:
    num_rows = math.prod(shape[:-1])
    rows = first_row(num_rows) + jnp.arange(num_rows, dtype=jnp.uint32).reshape(*shape[:-1], 1)
    return kept(dropout.rate, dropout.seeds(), rows, jnp.arange(shape[-1], dtype=jnp.uint32))


# `jax.nn.softmax` has this derivative where `jax_softmax_custom_jvp` is set, which it isn't: attention then takes 1.5
# times as long on CPUs, and with a mask 1.75 times.
@jax.custom_jvp
def _softmax(logits: Logits, seen: Bool[Array, "..."] | None) -> Logits:
    """Softmax over the keys that are seen, or over all; zeros where a query sees none."""
    if seen is not None:
        logits = jnp.where(seen, logits, -jnp.inf)
    maximum = logits.max(-1, keepdims=True)
    weights = jnp.exp(logits - (maximum if seen is None else jnp.maximum(maximum, np.finfo(logits.dtype).min)))
    total = weights.sum(-1, keepdims=True)
    return weights / (total if seen is None else jnp.where(total == 0, 1, total))


@_softmax.defjvp
def _softmax_tangent(primals: tuple[Array, Array | None], tangents: tuple[Array, Any]) -> tuple[Logits, Logits]:
    weights = _softmax(*primals)
    of_logits, _ = tangents
    if primals[1] is not None:
        of_logits = jnp.where(primals[1], of_logits, 0)  # a bias may have no finite derivative at a hidden key
    return weights, weights * (of_logits - (weights * of_logits).sum(-1, keepdims=True))


def _log_sum_exp(logits: Logits, seen: Bool[Array, "..."] | None) -> Float[Array, "... T"]:
    if seen is None:
        return jax.nn.logsumexp(logits, axis=-1)
    # Finite, so that a row without any allowed key gives NaN neither here nor in the gradient.
    logits = jnp.where(seen, logits, np.finfo(logits.dtype).min)
    is_blind = ~jnp.broadcast_to(seen, logits.shape).any(-1)
    # Where nothing is seen, all logits are the lowest number: their sum is not used, nor its gradient.
    return jnp.where(is_blind, -jnp.inf, jax.nn.logsumexp(logits, axis=-1))


def check_operands(*, grouped: bool = False, **operands: Any) -> None:
    """Raise an `InputError` unless q, k and v hold numbers and fit; `grouped` allows fewer heads of k and v."""
    arrays = {
        name: x if hasattr(x, "dtype") and hasattr(x, "shape") else as_array(name, x) for name, x in operands.items()
    }
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.number) or jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise InputError(f"{name} has type {array.dtype}; it must hold real numbers")
    q, k, v = shapes = [array.shape for array in arrays.values()]
    fits = min(map(len, shapes)) >= 2
    fits = fits and q[-1] == k[-1] and k[-2] == v[-2] and 0 not in (*q, *k, *v)
    if fits and grouped and len(q) == len(k) == len(v) > 3 and 1 < k[-3] == v[-3] < q[-3]:
        if q[-3] % k[-3]:
            raise InputError(f"k and v have {k[-3]} heads and q has {q[-3]}; theirs must divide those of q")
        shapes = [(*shape[:-3], *shape[-2:]) for shape in shapes]
    try:
        jnp.broadcast_shapes(*(shape[:-2] for shape in shapes))
    except ValueError:
        fits = False
    if not fits:
        raise InputError(
            f"q, k and v have shapes {q}, {k} and {v}; they must be [..., T, d], [..., S, d] and [..., S, d_v], with "
            "no size of 0"
        )
