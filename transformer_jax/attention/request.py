"""One call of attention: its arguments, the implementation that runs, and the reasons for it."""

import dataclasses
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.argument_checks import as_array
from transformer_jax.attention.biases import AttentionBias, Biases, as_attention_bias
from transformer_jax.attention.masks.symbolic import AttentionMask, Masks, as_attention_mask
from transformer_jax.attention.score_block import Shape, whole_block
from transformer_jax.dropout import AttentionDropout
from transformer_jax.errors import InputError, check_value
from transformer_jax.mesh_axis import with_value

Backend = Literal["cpu", "gpu", "cuda", "rocm", "tpu"]


class AttentionRequest(NamedTuple):
    """Arguments of `dot_product_attention`, checked by `checked_request`."""

    q_shape: Shape
    k_shape: Shape
    v_shape: Shape
    dtype: np.dtype  # to which q, k and v are promoted
    mask: AttentionMask | None
    bias: AttentionBias | None
    dropout: AttentionDropout | None  # None if its rate is 0
    wants_attention: bool
    backend: str  # cpu, gpu, cuda, rocm or tpu

    @property
    def num_batch(self) -> int:
        """Batch size B of masks and biases; 1 without a batch axis."""
        return whole_block(self.logits_shape).batch.size

    @property
    def logits_shape(self) -> Shape:
        """`[..., T, S]`."""
        return (*self.q_shape[:-1], self.k_shape[-2])


def checked_request(
    q: Any,
    k: Any,
    v: Any,
    mask: Masks | None,
    bias: Biases | None,
    dropout: AttentionDropout | None = None,
    wants_attention: bool = False,
    backend: str | None = None,
) -> AttentionRequest:
    """Check the arguments of `dot_product_attention`; q, k and v are arrays, or objects with a shape and a dtype.

    Raises:
        InputError: the arguments do not match each other.
    """
    check_value("dropout", dropout, AttentionDropout | None)
    check_value("return_attention", wants_attention, bool)
    check_value("backend", backend, Backend | None)
    q, k, v = _real_numbers("q", q), _real_numbers("k", k), _real_numbers("v", v)
    _check_shapes(q.shape, k.shape, v.shape)
    dtypes = [jax.dtypes.canonicalize_dtype(x.dtype) for x in (q, k, v)]
    dtype = jnp.result_type(*dtypes, float)  # with a Python `float`, integers become float32
    request = AttentionRequest(
        q.shape,
        k.shape,
        v.shape,
        dtype,
        None if mask is None else as_attention_mask(mask),
        None if bias is None else as_attention_bias(bias),
        None if dropout is None or dropout.rate == 0 else dropout,
        wants_attention,
        backend or jax.default_backend(),
    )
    for rule in (request.mask, request.bias):
        if rule is not None:
            rule.check(request.logits_shape)
    return request


def with_batch_and_heads(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Reshape q, k and v to `[N, H, T, d]`, `[N, Hkv, S, d]` and `[N, Hkv, S, d_v]`."""
    return _with_rank_4(q), _with_rank_4(k), _with_rank_4(v)


def _with_rank_4(x: Array) -> Array:
    _, *sizes = whole_block(x.shape).shape  # H, T, d
    return x.reshape(-1, *sizes)


def _real_numbers(name: str, x: Any) -> Any:
    array = x if isinstance(getattr(x, "dtype", None), np.dtype) else as_array(name, x)
    is_real = any(jnp.issubdtype(array.dtype, kind) for kind in (jnp.floating, jnp.integer))
    if not is_real:
        raise InputError(f"{name} has type {array.dtype}; it must hold real numbers")
    return array


def _check_shapes(q: Shape, k: Shape, v: Shape) -> None:
    has_heads = len(q) > 3
    num_leading = len(q) - 2 - has_heads  # without the heads
    has_ranks = len(q) == len(k) >= 2
    queries_fit_keys = q[:num_leading] == k[:num_leading] and q[-1] == k[-1]
    keys_fit_values = k[:-1] == v[:-1]
    is_empty = 0 in (*q, *k, *v)
    if not (has_ranks and queries_fit_keys and keys_fit_values) or is_empty:
        raise InputError(
            f"q, k and v have shapes {q}, {k} and {v}; they must be [..., T, d], [..., S, d] and"
            " [..., S, d_v], with the same leading axes except the heads, and no axis of size 0"
        )
    if has_heads and q[-3] % k[-3]:
        raise InputError(
            f"k and v have {k[-3]} heads, which must divide the number of heads of q, {q[-3]}"
        )


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Which implementation of attention runs, and why the others do not."""

    implementation: str
    reason: str  # why it runs
    others: dict[str, str]  # why each of the others does not run
    logits: Shape  # T and S

    def __str__(self) -> str:
        num_queries, num_keys = self.logits
        text = (
            f"{self.implementation} attention of {num_queries} × {num_keys} logits: {self.reason}"
        )
        for name, reason in self.others.items():
            text += f"; not {name}: {reason}"
        return text

    __repr__ = __str__


_calls: ContextVar[list[Explanation]] = ContextVar("_calls")


def recording_attention() -> AbstractContextManager[list[Explanation]]:
    """Context manager that yields a list, to which every call of attention traced in the block is appended."""
    return with_value(_calls, [])


def record_attention(explanation: Explanation) -> None:
    """Append a call to the list of `recording_attention`."""
    _calls.get([]).append(explanation)
