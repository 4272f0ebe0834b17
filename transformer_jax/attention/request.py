"""One call of attention: what was asked for, which implementation runs, and why."""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from transformer_jax.attention.biases import AttentionBias
from transformer_jax.attention.dropout import AttentionDropout
from transformer_jax.attention.masks.symbolic import AttentionMask

Shape = tuple[int, ...]


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
    wants_log_sum_exp: bool
    backend: str  # cpu, gpu, cuda, rocm or tpu

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


@dataclasses.dataclass(frozen=True)
class Explanation:
    """Which implementation runs, and why each of the others does not."""

    implementation: str
    reason: str  # for it
    others: dict[str, str]  # reason against each
    logits: tuple[int, int]  # T and S

    def __str__(self) -> str:
        return f"{self.implementation} attention of {_sizes([self])}: {_reasons([self])}"

    __repr__ = __str__


_calls: ContextVar[list[Explanation] | None] = ContextVar("_calls", default=None)


@contextlib.contextmanager
def recording_attention() -> Iterator[list[Explanation]]:
    """A block in which a program is traced.

    Yields:
        The calls of `dot_product_attention`, a list that fills while the block runs.
    """
    calls: list[Explanation] = []
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


def record_attention(explanation: Explanation) -> None:
    """Note a call, for `recording_attention`."""
    calls = _calls.get()
    if calls is not None:
        calls.append(explanation)


def attention_line(calls: Iterable[Explanation]) -> str:
    """One line on the calls of a program, at least one."""
    groups: dict[tuple[str, str], list[Explanation]] = {}
    for call in calls:
        groups.setdefault((call.implementation, call.reason), []).append(call)
    parts = [f"{name} for {_sizes(members)}: {_reasons(members)}" for (name, _), members in groups.items()]
    return f"Attention: {' | '.join(parts)}"


def _sizes(explanations: Iterable[Explanation]) -> str:
    sizes = dict.fromkeys("{} × {}".format(*explanation.logits) for explanation in explanations)
    return f"{', '.join(sizes)} logits"


def _reasons(explanations: list[Explanation]) -> str:
    """The reason for an implementation, which all have, and those against the others."""
    parts = [explanations[0].reason]
    for name in explanations[0].others:
        reasons = dict.fromkeys(explanation.others[name] for explanation in explanations)
        parts.append(f"not {name}: {', '.join(reasons)}")
    return "; ".join(parts)
