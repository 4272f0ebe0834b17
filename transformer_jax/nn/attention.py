"""Multi-head attention as a module (Vaswani et al. 2017)."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float

from transformer_jax.argument_checks import (
    ModuleFactory,
    Positive,
    Probability,
    Size,
    check_fields,
    check_kv_heads,
    check_sequence,
)
from transformer_jax.attention.biases import AttentionFunction, Biases, as_attention_bias
from transformer_jax.attention.masks.symbolic import Masks
from transformer_jax.dropout import AttentionDropout
from transformer_jax.errors import InputError, head_width
from transformer_jax.nn.layers import Dense, Tapped
from transformer_jax.nn.positions import (
    FIRST_OF_PASS,
    AttentionPositions,
    Heads,
    NoPositions,
    Positions,
)

Implementation = Literal["auto", "plain", "blockwise", "fused"]  # of `dot_product_attention`
Queries = Float[Array, "B H T d"]
Keys = Float[Array, "B Hkv S d"]  # with Hkv heads, which groups of the H query heads share


@dataclasses.dataclass(frozen=True)
class AttentionSettings:
    """Settings of multi-head attention. An invalid value is an `InputError`."""

    # Number of key/value heads, which groups of query heads share; it divides H (Ainslie et al. 2023). None: H.
    num_kv_heads: Size | None = None
    # Norm of each head's queries and keys before their product, e.g. RMSNorm (Dehghani et al. 2023, section 2).
    qk_norm: ModuleFactory | None = None
    dropout_prob: Probability = 0.0  # of the attention weights
    # Implementation of `dot_product_attention` (`auto` chooses one by the sizes), or a function that replaces it.
    implementation: Implementation | AttentionFunction = "auto"
    head_width: Size | None = None  # d; None: D / H
    input_bias: bool = True  # whether the projections to queries, keys and values have a bias
    output_bias: bool = True  # whether the output projection has a bias
    scale: Positive | None = None  # factor of the logits; None: 1/√d
    # Class of a module that changes the logits with parameters. It is constructed with H; its call returns a bias.
    logit_change: ModuleFactory | None = None

    def __post_init__(self) -> None:
        check_fields(self)


class KeyValue(NamedTuple):
    """Projected keys and values of every head."""

    key: Keys
    value: Keys


class AttentionCall(NamedTuple):
    """Argument of `MultiheadAttention.attend`, in which interceptors replace fields by name."""

    query: Queries
    key: Keys
    value: Keys
    mask: Masks | None = None
    bias: Biases | None = None
    dropout: AttentionDropout | None = None
    wants_weights: bool = False
    tap: Callable[[str, Array, str], Array] | None = None  # of a module, for logits and weights


class MultiheadAttention(Tapped):
    """Multi-head attention: `Concat(head_1 … head_H) W_O`, `head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)`.

    Queries are computed from `x`; keys and values from `memory`, or from `x` if there is none (self-attention).
    Kernels start Xavier-uniform (Glorot and Bengio 2010), those of queries, keys and values as one kernel `[D, 3 D]`;
    biases start at zero. A subclass, which a block names as its `attention_class`, may override `__call__`; attention
    maps, inspection and cached decoding work if it calls `attend`. Source: Vaswani et al. 2017, section 3.2.2.

    Raises:
        InputError: at construction, if a field is invalid, a number of heads does not divide what it divides, or the
            positions do not support the width of a head.
    """

    # D, the width of the output, and of all heads together unless `head_width` is set
    embed_dim: Size
    num_heads: Size  # H
    dropout_prob: Probability | None = None  # of the attention weights; None: that of the settings
    settings: AttentionSettings = AttentionSettings()
    positions: Positions = NoPositions()  # inside self-attention
    looks_ahead: bool = True  # whether queries may see later keys, so that biases need them

    def __post_init__(self) -> None:
        super().__post_init__()
        check_kv_heads(self.settings.num_kv_heads, self.num_heads)
        self.positions.check(self.width())

    def setup(self) -> None:
        settings, width = self.settings, self.width()
        xavier = functools.partial(
            nn.initializers.variance_scaling, mode="fan_avg", distribution="uniform"
        )
        num_kv_heads = settings.num_kv_heads or self.num_heads
        # The variance of one matrix [D, 3D]; with twice it, docs/papers.md's Transformer-Tiny had BLEU 11.6, not 36.9.
        project = functools.partial(Dense, kernel_init=xavier(0.5), use_bias=settings.input_bias)
        self.query_proj = project(self.num_heads * width)
        self.key_proj = project(num_kv_heads * width)
        self.value_proj = project(num_kv_heads * width)
        self.output_proj = Dense(self.embed_dim, xavier(1.0), settings.output_bias)
        if settings.qk_norm is not None:
            self.query_norm = settings.qk_norm()
            self.key_norm = settings.qk_norm()
        if settings.logit_change is not None:
            self.logit_change = settings.logit_change(self.num_heads)
        in_attention = self.positions.in_attention(self.num_heads, self.looks_ahead)
        self.attention_positions = in_attention or AttentionPositions()

    @nn.nowrap
    def width(self) -> int:
        """Width d of a head."""
        return self.settings.head_width or head_width(self.embed_dim, self.num_heads)

    def __call__(
        self,
        x: Float[ArrayLike, "B T D_x"],
        memory: Float[ArrayLike, "B S D_memory"] | None = None,
        mask: Masks | None = None,
        return_attention: bool = False,
        *,
        bias: Biases | None = None,
        train: bool = False,
    ) -> Any:  # an array, with `return_attention` a pair; `Any`, so that callers need no casts
        """Attend from `x` to `memory` (or to itself).

        Args:
            x: `[B, T, D_x]`; its width may differ from `embed_dim`.
            memory: `[B, S, D_memory]`, or None for self-attention (S = T).
            mask, bias: as in `dot_product_attention`.
            return_attention: also return this pass's attention weights, which take O(T · S) memory.
            train: apply dropout to the weights; needs the random key `dropout` if its probability is not zero.

        Returns:
            `[B, T, D]`; with `return_attention` a pair of this array and the weights `[B, H, T, S]` after dropout.

        Raises:
            InputError: `x` or `memory` is not floating-point or has another rank, they differ in B, the mask or the
                bias does not broadcast, or weights are requested but `implementation` is a function that returns none.
        """
        self._check(x, memory)
        key, value = self.keys_and_values(x if memory is None else memory)
        query = self._heads(self.query_proj(x))  # [B H T d]
        if self.settings.qk_norm is not None:
            query = self.query_norm(query)
        query = self.attention_positions.encode(query, FIRST_OF_PASS, key.shape[2])
        query = self.tap("queries", query, "B H T d")
        key = self.tap("keys", key, "B Hkv S d")
        value = self.tap("values", value, "B Hkv S d")
        if self.settings.scale is not None:  # attention itself divides by √d
            query = query * (self.settings.scale * math.sqrt(self.width()))
        dropout = self._dropout() if train else None
        call = AttentionCall(query, key, value, mask, self.biases(bias), dropout, return_attention)
        attended = self.attend(call)
        values, weights = attended if return_attention else (attended, None)
        values = self.tap("head_outputs", values, "B H T d").swapaxes(-3, -2)  # [B T H d]
        joined = values.reshape(*values.shape[:-2], -1)  # [B T H·d]
        output = self.tap("output", self.output_proj(joined), "B T D")
        return (output, weights) if return_attention else output

    def keys_and_values(self, memory: Float[ArrayLike, "B S D_memory"]) -> KeyValue:
        """Project a memory to the keys and values of every head."""
        key = self._heads(self.key_proj(memory))
        if self.settings.qk_norm is not None:
            key = self.key_norm(key)
        key = self.attention_positions.encode(key, FIRST_OF_PASS, key.shape[2])
        return KeyValue(key, self._heads(self.value_proj(memory)))

    def biases(self, bias: Biases | None = None) -> Biases | None:
        """Return one bias: the settings' `logit_change`, then the bias of the positions, then the given one."""
        changes = [self.attention_positions.bias(), bias]
        if self.settings.logit_change is not None:
            changes.insert(0, as_attention_bias(self.logit_change()))
        given = [change for change in changes if change is not None]
        return functools.reduce(operator.add, given) if given else None

    def attend(self, call: AttentionCall, /) -> Any:
        """Compute each head's values with the configured implementation; if `wants_weights`, a pair with the weights.

        Attention maps, inspection (`tap`) and cached decoding intercept this method and `keys_and_values`.
        """
        arguments: Any = call.query, call.key, call.value, call.mask, call.bias, call.dropout
        implementation = self.settings.implementation
        # With few logits `auto` is `plain_attention(query, key, value, …)` of `attention/formula.py`.
        from transformer_jax.attention.attention import attend_by_function, dot_product_attention

        options: Any = {"return_attention": call.wants_weights, "tap": call.tap}
        if not isinstance(implementation, str):
            return attend_by_function(implementation, *arguments, **options)
        if call.wants_weights:
            implementation = "plain"
        return dot_product_attention(*arguments, implementation=implementation, **options)

    def _heads(self, x: Float[Array, "B T width"]) -> Heads:
        split = x.reshape(*x.shape[:-1], -1, self.width())  # [B T H d]
        return split.swapaxes(-3, -2)

    def _dropout(self) -> AttentionDropout | None:
        rate = self.settings.dropout_prob if self.dropout_prob is None else self.dropout_prob
        return AttentionDropout(rate, self.make_rng("dropout")) if rate > 0 else None

    def _check(self, x: ArrayLike, memory: ArrayLike | None) -> None:
        check_sequence("x", x)
        if memory is None:
            return
        check_sequence("memory", memory)
        if self.positions.is_in_attention:
            raise InputError(
                f"memory is given, but positions is {self.positions}, which works in self-attention"
                " only, since x and memory have no common positions"
            )
        sizes = jnp.shape(memory)[0], jnp.shape(x)[0]
        if sizes[0] != sizes[1]:
            raise InputError("memory has {} rows and x has {}; they must be equal".format(*sizes))
