"""Multi-head attention as a module (Vaswani et al. 2017)."""

from typing import Literal, NamedTuple, overload

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int

from transformer_jax.errors import InputError, check_heads, check_number, check_probability, check_sizes
from transformer_jax.nn.attention_dropout import AttentionDropout
from transformer_jax.nn.attention_masks import Masks
from transformer_jax.nn.biases import Biases
from transformer_jax.nn.checks import check_sequence
from transformer_jax.nn.dense import Dense
from transformer_jax.nn.dot_product import Implementation, dot_product_attention
from transformer_jax.nn.plain import scaled_dot_product as scaled_dot_product


def head_width(embed_dim: int, num_heads: int) -> int:
    """Width d = D / H of one head.

    Raises:
        InputError: one of them is no whole number of at least 1, or `num_heads` does not divide `embed_dim`.
    """
    check_sizes(embed_dim=embed_dim, num_heads=num_heads)
    check_heads(embed_dim, num_heads)
    return embed_dim // num_heads


class KeyValue(NamedTuple):
    """Projected keys and values of every head, computed once for a memory and kept while decoding."""

    key: Float[Array, "B H S d"]
    value: Float[Array, "B H S d"]

    def grow(self, length: int) -> "KeyValue":
        """Copy with room for `length` positions.

        Raises:
            InputError: there already is room for more.
        """
        check_sizes(self.key.shape[2], length=length)
        padding = (0, 0), (0, 0), (0, length - self.key.shape[2]), (0, 0)
        return KeyValue(jnp.pad(self.key, padding), jnp.pad(self.value, padding))


class MultiheadAttention(nn.Module):
    """Multi-head attention: `Concat(head_1 … head_H) W_O`, `head_i = Attention(Q W_i^Q, K W_i^K, V W_i^V)`.

    Queries are computed from `x`; keys and values from `memory`, or from `x` if there is none (self-attention).
    Kernels start Xavier-uniform, biases at zero. Source: Vaswani et al. 2017, section 3.2.2.

    Raises:
        InputError: at construction, if `num_heads` does not divide `embed_dim`, or `dropout_prob` is outside [0, 1).
    """

    embed_dim: int  # D, the width of the output and of the H heads together
    num_heads: int  # H
    dropout_prob: float = 0.0  # of the attention weights
    implementation: Implementation = "auto"  # of `dot_product_attention`

    def __post_init__(self) -> None:
        head_width(self.embed_dim, self.num_heads)
        check_number("dropout_prob", self.dropout_prob)
        check_probability("dropout_prob", self.dropout_prob)
        super().__post_init__()

    def setup(self) -> None:
        self.query_proj = self._dense()
        self.key_proj = self._dense()
        self.value_proj = self._dense()
        self.output_proj = self._dense()

    def _dense(self) -> Dense:
        return Dense(self.embed_dim, kernel_init=nn.initializers.xavier_uniform())

    @overload
    def __call__(
        self,
        x: ArrayLike,
        memory: ArrayLike | None = None,
        mask: Masks | None = None,
        return_attention: Literal[False] = False,
        *,
        bias: Biases | None = None,
        train: bool = False,
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        memory: ArrayLike | None = None,
        mask: Masks | None = None,
        *,
        return_attention: Literal[True],
        bias: Biases | None = None,
        train: bool = False,
    ) -> tuple[Array, Array]: ...

    def __call__(
        self,
        x: Float[ArrayLike, "B T D_x"],
        memory: Float[ArrayLike, "B S D_memory"] | None = None,
        mask: Masks | None = None,
        return_attention: bool = False,
        *,
        bias: Biases | None = None,
        train: bool = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B H T S"]]:
        """Attend from `x` to `memory` (or to itself).

        Args:
            x: `[B, T, D_x]`; its width may differ from `embed_dim`.
            memory: `[B, S, D_memory]`, or None for self-attention (S = T).
            mask: which keys a query may see, as in `dot_product_attention`.
            return_attention: also return the weights that this pass used. All of them at once need memory of T × S.
            bias: of the logits, as in `dot_product_attention`.
            train: apply dropout to the weights; needs the random key `dropout` where its probability is not zero.

        Returns:
            `[B, T, D]`, with `return_attention` a pair of it and the weights `[B, H, T, S]`.

        Raises:
            InputError: `x` or `memory` is of no floating-point type or of another rank, they differ in B, or the mask
                or the bias does not fit.
        """
        output, attention = self.attend_from(x, memory, mask, bias=bias, train=train, return_attention=return_attention)
        return (output, attention) if attention is not None else output

    def attend_from(
        self,
        x: Float[ArrayLike, "B T D_x"],
        memory: Float[ArrayLike, "B S D_memory"] | None = None,
        mask: Masks | None = None,
        *,
        return_attention: bool,
        bias: Biases | None = None,
        train: bool = False,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
        """`__call__` that always gives a pair, with None in the place of weights that were not asked for."""
        check_sequence("x", x)
        if memory is not None:
            check_sequence("memory", memory)
            if jnp.shape(memory)[0] != jnp.shape(x)[0]:
                raise InputError(
                    f"memory has {jnp.shape(memory)[0]} rows and x has {jnp.shape(x)[0]}; they must be equal"
                )
        projected = self.project(x if memory is None else memory)
        return self.attend(x, projected, mask, bias=bias, train=train, return_attention=return_attention)

    def project(self, memory: Float[ArrayLike, "B S D_memory"]) -> KeyValue:
        """Project a memory to the keys and values of every head."""
        return KeyValue(self._split_heads(self.key_proj(memory)), self._split_heads(self.value_proj(memory)))

    def attend(
        self,
        x: Float[ArrayLike, "B T D_x"],
        memory: KeyValue,
        mask: Masks | None = None,
        *,
        bias: Biases | None = None,
        train: bool = False,
        return_attention: bool = False,
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"] | None]:
        """Attend from `x` to projected keys and values; returns the output, and weights if asked for."""
        dropout = None
        if train and self.dropout_prob > 0:
            dropout = AttentionDropout(self.dropout_prob, self.make_rng("dropout"))
        result = dot_product_attention(
            self._split_heads(self.query_proj(x)),  # [B H T d]
            memory.key,
            memory.value,
            mask,
            bias,
            dropout=dropout,
            implementation=self.implementation,
            return_attention=return_attention,
        )
        values, attention = result if return_attention else (result, None)
        return self.output_proj(self._join_heads(values)), attention

    def extend(
        self, x: Float[ArrayLike, "B 1 D"], cache: KeyValue, position: Int[ArrayLike, ""]
    ) -> tuple[Float[Array, "B 1 D"], KeyValue]:
        """Compute causal self-attention for one more position, and add its key and value to the cache.

        Args:
            x: the new position.
            cache: keys and values of S positions, of which those before `position` are filled.
            position: index of the new position.

        Returns:
            The output at the new position, and the cache with its key and value.
        """
        pairs = zip(cache, self.project(x), strict=True)
        cache = KeyValue(*(jax.lax.dynamic_update_slice_in_dim(old, new, position, 2) for old, new in pairs))
        filled = jnp.arange(cache.key.shape[2]) <= position  # [S]
        return self.attend(x, cache, filled[None])[0], cache

    def _split_heads(self, x: Float[Array, "B T D"]) -> Float[Array, "B H T d"]:
        d = head_width(self.embed_dim, self.num_heads)
        return x.reshape(*x.shape[:-1], self.num_heads, d).swapaxes(-3, -2)

    def _join_heads(self, x: Float[Array, "B H T d"]) -> Float[Array, "B T D"]:
        x = x.swapaxes(-3, -2)  # [B T H d]
        return x.reshape(*x.shape[:-2], self.embed_dim)
