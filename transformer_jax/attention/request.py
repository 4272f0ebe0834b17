"""One call of attention: what was asked for, which implementation runs, and why."""

import dataclasses
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.argument_checks import as_array
from transformer_jax.attention.biases import AttentionBias, Biases, as_attention_bias
from transformer_jax.attention.dropout import AttentionDropout
from transformer_jax.attention.masks.symbolic import AttentionMask, Masks, as_attention_mask
from transformer_jax.errors import InputError, check_value
from transformer_jax.mesh_axis import held

Shape = tuple[int, ...]
Backend = Literal["cpu", "gpu", "cuda", "rocm", "tpu"]


@dataclasses.dataclass(frozen=True)
class AttentionRequest:
    """Arguments of `dot_product_attention`."""

    q_shape: Shape
    k_shape: Shape
    v_shape: Shape
    dtype: np.dtype  # of q, k and v together
    mask: AttentionMask | None
    bias: AttentionBias | None
    dropout: AttentionDropout | None  # None where its rate is 0
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
        """The request of these arguments.

        Raises:
            InputError: they do not fit each other.
        """
        check_value("dropout", dropout, AttentionDropout | None)
        check_value("return_attention", wants_attention, bool)
        check_value("backend", backend, Backend | None)
        check_operands(q=q, k=k, v=v)
        types = (
            jax.dtypes.canonicalize_dtype(x.dtype if hasattr(x, "dtype") else jnp.asarray(x).dtype) for x in (q, k, v)
        )
        dtype = jnp.result_type(*types)
        request = cls(
            np.shape(q),
            np.shape(k),
            np.shape(v),
            dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.promote_types(dtype, jnp.float32),  # as promote_dtype
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
    def has_heads(self) -> bool:
        """Whether the last leading axis is one of heads."""
        return len(self.logits_shape) > 3

    @property
    def num_groups(self) -> int:
        """Heads of k and v, Hkv; where they differ from each other, as many as q has."""
        heads = {shape[-3] if len(shape) > 2 else 1 for shape in (self.k_shape, self.v_shape)}
        return heads.pop() if self.has_heads and len(heads) == 1 else self.num_heads

    @property
    def num_heads(self) -> int:
        """Heads of the logits, H; 1 where they have no such axis."""
        return self.logits_shape[-3] if self.has_heads else 1

    @property
    def num_batch(self) -> int:
        """Batch elements B of a mask, 1 where there are none."""
        leading = self.logits_shape[:-2]
        return leading[-2] if self.has_heads else leading[0] if leading else 1

    @property
    def logits_shape(self) -> Shape:
        """`[..., T, S]`."""
        shapes = [shape[:-2] for shape in (self.q_shape, self.k_shape, self.v_shape)]
        if len(self.q_shape) > 3 and self.q_shape[-3] > 1:
            # Fewer heads of keys and values are no axis to broadcast.
            shapes = [
                (*shape[:-1], 1) if shape and 1 < shape[-1] < self.q_shape[-3] else shape for shape in shapes
            ]  # fmt: skip
        return (*jnp.broadcast_shapes(*shapes), self.q_shape[-2], self.k_shape[-2])

    def with_heads(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """The operands as `[N, H, T, d]`, `[N, Hkv, S, d]` and `[N, Hkv, S, d_v]`."""

        def shaped(x: Array, num_heads: int) -> Float[Array, "N heads length width"]:
            leading = (*self.logits_shape[:-3], num_heads) if self.has_heads else self.logits_shape[:-2]
            x = jnp.broadcast_to(x, (*leading, *x.shape[-2:]))
            return x.reshape(-1, num_heads, *x.shape[-2:])

        return shaped(q, self.num_heads), shaped(k, self.num_groups), shaped(v, self.num_groups)


def check_operands(**operands: Any) -> None:
    """Raise an `InputError` unless q, k and v hold numbers and fit; k and v may have fewer heads."""
    arrays = {
        name: x if hasattr(x, "dtype") and hasattr(x, "shape") else as_array(name, x) for name, x in operands.items()
    }
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.number) or jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise InputError(f"{name} has type {array.dtype}; it must hold real numbers")
    q, k, v = shapes = [array.shape for array in arrays.values()]
    fits = min(map(len, shapes)) >= 2
    fits = fits and q[-1] == k[-1] and k[-2] == v[-2] and 0 not in (*q, *k, *v)
    if fits and len(q) == len(k) == len(v) > 3 and 1 < k[-3] == v[-3] < q[-3]:
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


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Which implementation runs, and why each of the others does not."""

    implementation: str
    reason: str  # for it
    others: dict[str, str]  # reason against each
    logits: tuple[int, int]  # T and S

    def __str__(self) -> str:
        reasons = "; ".join([self.reason, *(f"not {name}: {reason}" for name, reason in self.others.items())])
        return "{} attention of {} × {} logits: {}".format(self.implementation, *self.logits, reasons)

    __repr__ = __str__


_calls: ContextVar[list[Explanation]] = ContextVar("_calls")


def recording_attention() -> AbstractContextManager[list[Explanation]]:
    """A block in which a program is traced; it is given the list of its calls of attention, which fills as it runs."""
    return held(_calls, [])


def record_attention(explanation: Explanation) -> None:
    """Note a call, for `recording_attention`."""
    _calls.get([]).append(explanation)
