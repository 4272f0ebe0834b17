"""Multi-head attention as a module (Vaswani et al. 2017)."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.argument_checks import Positive, Probability, Size, check_kv_heads, check_sequence
from transformer_jax.attention.attention import Implementation, dot_product_attention
from transformer_jax.attention.biases import Biases
from transformer_jax.attention.dropout import AttentionDropout
from transformer_jax.attention.masks.symbolic import Causal, Masks
from transformer_jax.attention.rows import AttentionRows, ReturnAttention, Weights, attention_rows
from transformer_jax.attention.score_block import Start
from transformer_jax.errors import InputError, check_sizes, head_width
from transformer_jax.nn.layers import Dense, Tapped
from transformer_jax.nn.positions import AttentionPositions, NoPositions, Positions

# Queries [B H T d], keys and values [B Hkv S d], mask and bias of one call.
Operands: TypeAlias = tuple[Array, Array, Array, Masks | None, Biases | None]


class KeyValue(NamedTuple):
    """Projected keys and values of every head, computed once for a memory and kept while decoding."""

    key: Float[Array, "B Hkv S d"]
    value: Float[Array, "B Hkv S d"]

    def grow(self, length: int) -> "KeyValue":
        """Copy with room for `length` positions.

        Raises:
            InputError: there already is room for more.
        """
        check_sizes(self.key.shape[2], length=length)
        padding = (0, 0), (0, 0), (0, length - self.key.shape[2]), (0, 0)
        return KeyValue(jnp.pad(self.key, padding), jnp.pad(self.value, padding))


class MultiheadAttention(Tapped):
    """Multi-head attention: `Concat(head_1 … head_H) W_O`, `head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)`.

    Queries are computed from `x`; keys and values from `memory`, or from `x` if there is none (self-attention).
    Kernels start Xavier-uniform, biases at zero. Source: Vaswani et al. 2017, section 3.2.2.

    With fewer heads of keys and values, the H / Hkv query heads of a group share one (Ainslie et al. 2023).

    Raises:
        InputError: at construction, if `num_heads` does not divide `embed_dim` and there is no `head_width`,
            `num_kv_heads` does not divide `num_heads`, `dropout_prob` is outside [0, 1), or the positions do not work
            with the width of a head.
    """

    embed_dim: Size  # D, the width of the output, and without `head_width` that of the H heads together
    num_heads: Size  # H
    dropout_prob: Probability = 0.0  # of the attention weights
    implementation: Implementation = "auto"  # of `dot_product_attention`
    num_kv_heads: Size | None = None  # Hkv, heads of keys and values; None: H
    qk_norm: Callable[..., nn.Module] | None = None  # of each head's queries and keys, as RMSNorm
    positions: Positions = NoPositions()  # of self-attention; those added to embeddings do nothing here
    looks_ahead: bool = True  # whether queries may see later keys: without, a learned bias has no buckets for them
    head_width: Size | None = None  # d; None: D / H
    input_bias: bool = True  # of the projections to queries, keys and values
    output_bias: bool = True  # of the output projection
    scale: Positive | None = None  # of the logits; None: 1/√d

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kv_heads(self.num_kv_heads, self.num_heads)
        self.positions.check(self.width())

    def setup(self) -> None:
        self.query_proj = self._dense(self.num_heads * self.width(), self.input_bias)
        kv_width = (self.num_kv_heads or self.num_heads) * self.width()
        self.key_proj = self._dense(kv_width, self.input_bias)
        self.value_proj = self._dense(kv_width, self.input_bias)
        self.output_proj = self._dense(self.embed_dim, self.output_bias)
        if self.qk_norm is not None:
            self.query_norm = self.qk_norm()
            self.key_norm = self.qk_norm()
        self.attention_positions = self.positions.in_attention(self.num_heads, self.looks_ahead) or AttentionPositions()

    @nn.nowrap
    def width(self) -> int:
        """Width d of a head."""
        return self.head_width or head_width(self.embed_dim, self.num_heads)

    def _dense(self, features: int, use_bias: bool) -> Dense:
        return Dense(features, nn.initializers.xavier_uniform(), use_bias)

    def __call__(
        self,
        x: Float[ArrayLike, "B T D_x"],
        memory: Float[ArrayLike, "B S D_memory"] | None = None,
        mask: Masks | None = None,
        return_attention: ReturnAttention = False,
        *,
        bias: Biases | None = None,
        train: bool = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Weights]:
        """Attend from `x` to `memory` (or to itself).

        Args:
            x: `[B, T, D_x]`; its width may differ from `embed_dim`.
            memory: `[B, S, D_memory]`, or None for self-attention (S = T).
            mask: which keys a query may see, as in `dot_product_attention`.
            return_attention: also return the weights that this pass used, which need memory of T × S; or, without it,
                those of an `AttentionRows(queries, heads)`.
            bias: of the logits, as in `dot_product_attention`.
            train: apply dropout to the weights; needs the random key `dropout` where its probability is not zero.

        Returns:
            `[B, T, D]`, with `return_attention` a pair of it and the weights `[B, H, T, S]`, of those heads and queries
            that were chosen.

        Raises:
            InputError: `x` or `memory` is of no floating-point type or of another rank, they differ in B, or the mask
                or the bias does not fit.
        """
        output, attention = self.attend_from(x, memory, mask, bias=bias, train=train, return_attention=return_attention)
        return (output, attention) if attention is not None else output

    def project(
        self, memory: Float[ArrayLike, "B S D_memory"], first: Start = 0, length: int | None = None
    ) -> KeyValue:
        """Project a memory to the keys and values of every head.

        Args:
            memory: `[B, S, D_memory]`.
            first: position of its first element, which may be traced.
            length: number of positions that there can be; None: S.
        """
        key = self._split_heads(self.key_proj(memory))
        if self.qk_norm is not None:
            key = self.key_norm(key)
        key = self.attention_positions.encode(key, first, key.shape[2] if length is None else length)
        return KeyValue(key, self._split_heads(self.value_proj(memory)))

    def attend_from(
        self,
        x: Float[ArrayLike, "B T D_x"],
        memory: Float[ArrayLike, "B S D_memory"] | KeyValue | None = None,
        mask: Masks | None = None,
        *,
        bias: Biases | None = None,
        train: bool = False,
        return_attention: ReturnAttention = False,
        first: Start = 0,
    ) -> tuple[Float[Array, "B T D"], Weights | None]:
        """`__call__` that always gives a pair, with None in the place of weights that were not asked for.

        The memory may be projected already; positions of `x` begin at `first`.
        """
        check_sequence("x", x)
        if not isinstance(memory, KeyValue):
            memory = self._projected(x, memory)
        dropout = None
        if train and self.dropout_prob > 0:
            dropout = AttentionDropout(self.dropout_prob, self.make_rng("dropout"))
        elif return_attention is True and self.implementation in ("blockwise", "fused"):
            return_attention = AttentionRows()  # which are those of its pass, although it holds none
        query = self._split_heads(self.query_proj(x))  # [B H T d]
        if self.qk_norm is not None:
            query = self.query_norm(query)
        query = self.attention_positions.encode(query, first, memory.key.shape[2])
        query = self.tap("queries", query, "B H T d")
        key = self.tap("keys", memory.key, "B Hkv S d")
        value = self.tap("values", memory.value, "B Hkv S d")
        if self.scale is not None:  # attention itself divides by √d
            query = query * (self.scale * math.sqrt(self.width()))
        operands = query, key, value, mask, self._biased(bias, first)
        values, attention = self._values(operands, dropout, return_attention)
        values = self.tap("head_outputs", values, "B H T d").swapaxes(-3, -2)  # [B T H d]
        output = self.output_proj(values.reshape(*values.shape[:-2], -1))
        return self.tap("output", output, "B T D"), attention

    def _projected(self, x: ArrayLike, memory: ArrayLike | None) -> KeyValue:
        if memory is None:
            return self.project(x)
        check_sequence("memory", memory)
        if self.positions.is_in_attention:
            raise InputError(
                f"memory is given, but positions is {self.positions}: it is for self-attention alone, since x and "
                "memory have no common positions"
            )
        if jnp.shape(memory)[0] != jnp.shape(x)[0]:
            raise InputError(f"memory has {jnp.shape(memory)[0]} rows and x has {jnp.shape(x)[0]}; they must be equal")
        return self.project(memory)

    @nn.nowrap  # so that profiles name its operations as those of `attend_from`
    def _values(
        self, operands: Operands, dropout: AttentionDropout | None, return_attention: ReturnAttention
    ) -> tuple[Float[Array, "B H T d"], Weights | None]:
        """Each head's output, and the weights if asked for."""
        is_tapped = self.is_asked("logits", "weights")
        rows = return_attention if isinstance(return_attention, AttentionRows) else None
        wants_all = return_attention is True or (rows is not None and is_tapped and dropout is None)
        implementation, tap = self.implementation, self.tap if is_tapped else None
        result: Any = dot_product_attention(
            *operands, dropout=dropout, implementation=implementation, return_attention=wants_all, tap=tap
        )
        values, attention = result if wants_all else (result, None)
        if rows is not None and attention is not None:
            attention = rows.cut(attention)
        elif rows is not None:  # those before dropout
            query, key, _, mask, bias = operands
            attention = attention_rows(query, key, mask, bias, **vars(rows))
        return values, attention

    def extend(
        self, x: Float[ArrayLike, "B T D"], cache: KeyValue, position: Int[ArrayLike, ""], bias: Biases | None = None
    ) -> tuple[Float[Array, "B T D"], KeyValue]:
        """Compute causal self-attention for T more positions, and add their keys and values to the cache.

        Args:
            x: the new positions.
            cache: keys and values of S positions, of which those before `position` are filled.
            position: index of the first new position.
            bias: of the logits, its queries those from `position` on.

        Returns:
            The output at the new positions, and the cache with their keys and values.
        """
        first: Start = position if isinstance(position, int) else jnp.asarray(position)
        pairs = zip(cache, self.project(x, first, cache.key.shape[2]), strict=True)
        cache = KeyValue(*(_written(old, new, first) for old, new in pairs))
        return self.attend_from(x, cache, Causal(first), bias=bias, first=first)[0], cache

    def empty_cache(self, batch_size: int, length: int, dtype: Any) -> KeyValue:
        """Keys and values of `length` positions of which none is filled."""
        empty = jnp.zeros((batch_size, self.num_kv_heads or self.num_heads, length, self.width()), dtype)
        return KeyValue(empty, empty)

    def _biased(self, bias: Biases | None, first: Start) -> Biases | None:
        """The bias of the positions, then the one that was given."""
        own = self.attention_positions.bias()
        if own is None:
            return bias
        own = own.shifted(first)
        return own if bias is None else own + bias

    def _split_heads(self, x: Float[Array, "B T width"]) -> Float[Array, "B heads T d"]:
        return x.reshape(*x.shape[:-1], -1, self.width()).swapaxes(-3, -2)


def _written(old: Float[Array, "B Hkv S d"], new: Float[Array, "B Hkv T d"], first: Start) -> Float[Array, "B Hkv S d"]:
    """A cache with new positions from `first` on, in its place.

    In a branch of its own, though it is always taken: into what reads the cache XLA would put the update once more, and
    for one row copy the whole cache four times.
    """
    update = jax.lax.dynamic_update_slice_in_dim
    return jax.lax.cond(jnp.asarray(first) >= 0, lambda: update(old, new, first, 2), lambda: old)
