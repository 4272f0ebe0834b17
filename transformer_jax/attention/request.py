"""One call of attention: its arguments, the implementation that runs, and the reasons for it."""

import dataclasses
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.argument_checks import as_array
from transformer_jax.attention.biases import AttentionBias, Biases, as_attention_bias
from transformer_jax.attention.masks.symbolic import AttentionMask, Masks, as_attention_mask
from transformer_jax.attention.score_block import whole_block
from transformer_jax.dropout import AttentionDropout
from transformer_jax.errors import InputError, check_value
from transformer_jax.mesh_axis import with_value

Shape = tuple[int, ...]
Backend = Literal["cpu", "gpu", "cuda", "rocm", "tpu"]


@dataclasses.dataclass(frozen=True)
class AttentionRequest:
    """Arguments of `dot_product_attention`."""

    q_shape: Shape
    k_shape: Shape
    v_shape: Shape
    dtype: np.dtype  # to which q, k and v are promoted
    mask: AttentionMask | None
    bias: AttentionBias | None
    dropout: AttentionDropout | None  # None if its rate is 0
    wants_attention: bool
    backend: str  # cpu, gpu, cuda, rocm or tpu

    @classmethod
    def of(
        cls,
        q: Any,
        k: Any,
        v: Any,
        mask: Masks | None,
        bias: Biases | None,
        dropout: AttentionDropout | None = None,
        wants_attention: bool = False,
        backend: str | None = None,
    ) -> "AttentionRequest":
        """Check arguments of `dot_product_attention` and make a request of them.

        Raises:
            InputError: the arguments do not match each other.
        """
        check_value("dropout", dropout, AttentionDropout | None)
        check_value("return_attention", wants_attention, bool)
        check_value("backend", backend, Backend | None)
        q, k, v = _checked_operands(q=q, k=k, v=v)
        dtype = jnp.result_type(*(jax.dtypes.canonicalize_dtype(x.dtype) for x in (q, k, v)))
        request = cls(
            q.shape,
            k.shape,
            v.shape,
            # as promote_dtype
            dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.promote_types(dtype, jnp.float32),
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

    @property
    def num_batch(self) -> int:
        """Batch size B of masks and biases; 1 without a batch axis."""
        return whole_block(self.logits_shape).batch.size

    @property
    def logits_shape(self) -> Shape:
        """`[..., T, S]`."""
        return (*self.q_shape[:-1], self.k_shape[-2])

    def with_heads(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Reshape the operands to `[N, H, T, d]`, `[N, Hkv, S, d]` and `[N, Hkv, S, d_v]`."""
        q, k, v = (x.reshape(-1, *whole_block(x.shape).shape[1:]) for x in (q, k, v))
        return q, k, v


def _checked_operands(**operands: Any) -> list[Any]:
    """Check q, k and v, arrays or objects with a shape and a dtype; k and v may have fewer heads.

    Raises:
        InputError: an operand is not numeric, or the shapes do not match.
    """
    arrays = {
        name: x if isinstance(getattr(x, "dtype", None), np.dtype) else as_array(name, x)
        for name, x in operands.items()
    }
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.number) or jnp.issubdtype(
            array.dtype, jnp.complexfloating
        ):
            raise InputError(f"{name} has type {array.dtype}; it must hold real numbers")
    q, k, v = (array.shape for array in arrays.values())
    num_leading = len(q) - (2 if len(q) < 4 else 3)  # without the heads
    fits = (
        len(q) == len(k) == len(v) >= 2 and q[:num_leading] == k[:num_leading] and k[:-1] == v[:-1]
    )
    if not fits or q[-1] != k[-1] or 0 in (*q, *k, *v):
        raise InputError(
            f"q, k and v have shapes {q}, {k} and {v}; they must be [..., T, d], [..., S, d] and"
            " [..., S, d_v], with the same leading axes except the heads, and no axis of size 0"
        )
    if len(q) > 3 and q[-3] % k[-3]:
        raise InputError(
            f"k and v have {k[-3]} heads, which must divide the number of heads of q, {q[-3]}"
        )
    return list(arrays.values())


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Which implementation of attention runs, and why the others do not."""

    implementation: str
    reason: str  # why it runs
    others: dict[str, str]  # why each of the others does not run
    logits: Shape  # T and S

    def __str__(self) -> str:
        reasons = "; ".join(
            [self.reason, *(f"not {name}: {reason}" for name, reason in self.others.items())]
        )
        return "{} attention of {} × {} logits: {}".format(
            self.implementation, *self.logits, reasons
        )

    __repr__ = __str__


_calls: ContextVar[list[Explanation]] = ContextVar("_calls")


def recording_attention() -> AbstractContextManager[list[Explanation]]:
    """Context manager that yields a list, to which every call of attention traced in the block is appended."""
    return with_value(_calls, [])


def record_attention(explanation: Explanation) -> None:
    """Append a call to the list of `recording_attention`."""
    _calls.get([]).append(explanation)
