"""Scaled dot-product attention as a function, and multi-head attention as a module (Vaswani et al. 2017)."""

import math
from typing import Literal, NamedTuple, overload

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Shaped

from transformer_jax.errors import InputError, check_heads, check_sizes
from transformer_jax.nn.checks import as_array, check_sequence
from transformer_jax.nn.dense import Dense
from transformer_jax.nn.masks import Mask, fit_mask


def scaled_dot_product(
    q: Shaped[ArrayLike, "... T d"],
    k: Shaped[ArrayLike, "... S d"],
    v: Shaped[ArrayLike, "... S d_v"],
    mask: Mask | None = None,
) -> tuple[Float[Array, "... T d_v"], Float[Array, "... T S"]]:
    """Attend to `v` by the similarity of `q` and `k`: `softmax(Q Kᵀ / √d) V` (Vaswani et al. 2017, equation 1).

    The softmax is computed in float32 or wider for any input type. A query that may attend to nothing gets zero
    weights and zero values, and a finite gradient.

    Masked keys and values must be finite too, since their weight of zero times infinity is NaN.

    Args:
        q: queries `[..., T, d]`.
        k: keys `[..., S, d]`.
        v: values `[..., S, d_v]`.
        mask: True = may attend; see `transformer_jax.nn.masks` for the ranks.

    Returns:
        The values `[..., T, d_v]` and the attention weights `[..., T, S]`, each row of which sums to one.

    Raises:
        InputError: the shapes do not fit or hold a 0, an operand is boolean; or the mask has another rank, is of a
            floating-point type, or does not broadcast.
    """
    _check_operands(q=q, k=k, v=v)
    q, k, v = (jnp.asarray(x) for x in promote_dtype(q, k, v, dtype=None))  # to one floating type
    wide = jnp.promote_types(q.dtype, jnp.float32)
    logits = jnp.einsum("...td,...sd->...ts", q, k, preferred_element_type=wide) / math.sqrt(q.shape[-1])
    if mask is not None:
        mask = fit_mask(mask, logits.shape)
        # Finite, so that a row without any allowed key gives NaN neither here nor in the gradient.
        logits = jnp.where(mask, logits, np.finfo(wide).min)
    attention = nn.softmax(logits)
    if mask is not None:
        attention = jnp.where(mask, attention, 0)  # a row without any allowed key was uniform until here
    attention = attention.astype(v.dtype)
    return jnp.einsum("...ts,...sd->...td", attention, v), attention


def _check_operands(**operands: ArrayLike) -> None:
    arrays = {name: as_array(name, x) for name, x in operands.items()}
    for name, array in arrays.items():
        if not jnp.issubdtype(array.dtype, jnp.number):
            raise InputError(f"{name} has type {array.dtype}; it must hold numbers")
    q, k, v = shapes = [array.shape for array in arrays.values()]
    fits = min(map(len, shapes)) >= 2
    fits = fits and q[-1] == k[-1] and k[-2] == v[-2] and 0 not in (*q, *k, *v)
    try:
        jnp.broadcast_shapes(*(shape[:-2] for shape in shapes))
    except ValueError:
        fits = False
    if not fits:
        raise InputError(
            f"q, k and v have shapes {q}, {k} and {v}; they must be [..., T, d], [..., S, d] and [..., S, d_v], with "
            "no size of 0"
        )


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
        InputError: at construction, if `num_heads` does not divide `embed_dim`.
    """

    embed_dim: int  # D, the width of the output and of the H heads together
    num_heads: int  # H

    def __post_init__(self) -> None:
        head_width(self.embed_dim, self.num_heads)
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
        mask: Mask | None = None,
        return_attention: Literal[False] = False,
    ) -> Array: ...
    @overload
    def __call__(
        self,
        x: ArrayLike,
        memory: ArrayLike | None = None,
        mask: Mask | None = None,
        *,
        return_attention: Literal[True],
    ) -> tuple[Array, Array]: ...

    def __call__(
        self,
        x: Float[ArrayLike, "B T D_x"],
        memory: Float[ArrayLike, "B S D_memory"] | None = None,
        mask: Mask | None = None,
        return_attention: bool = False,
    ) -> Float[Array, "B T D"] | tuple[Float[Array, "B T D"], Float[Array, "B H T S"]]:
        """Attend from `x` to `memory` (or to itself).

        Args:
            x: `[B, T, D_x]`; its width may differ from `embed_dim`.
            memory: `[B, S, D_memory]`, or None for self-attention (S = T).
            mask: True = may attend; see `transformer_jax.nn.masks` for the ranks.
            return_attention: also return the weights that this pass used.

        Returns:
            `[B, T, D]`, with `return_attention` a pair of it and the weights `[B, H, T, S]`.

        Raises:
            InputError: `x` or `memory` is of no floating-point type or of another rank, they differ in B, or the mask
                does not fit.
        """
        check_sequence("x", x)
        if memory is not None:
            check_sequence("memory", memory)
            if jnp.shape(memory)[0] != jnp.shape(x)[0]:
                raise InputError(
                    f"memory has {jnp.shape(memory)[0]} rows and x has {jnp.shape(x)[0]}; they must be equal"
                )
        output, attention = self.attend(x, self.project(x if memory is None else memory), mask)
        return (output, attention) if return_attention else output

    def project(self, memory: Float[ArrayLike, "B S D_memory"]) -> KeyValue:
        """Project a memory to the keys and values of every head."""
        return KeyValue(self._split_heads(self.key_proj(memory)), self._split_heads(self.value_proj(memory)))

    def attend(
        self, x: Float[ArrayLike, "B T D_x"], memory: KeyValue, mask: Mask | None = None
    ) -> tuple[Float[Array, "B T D"], Float[Array, "B H T S"]]:
        """Attend from `x` to projected keys and values; returns the output and the weights."""
        query = self._split_heads(self.query_proj(x))  # [B H T d]
        values, attention = scaled_dot_product(query, memory.key, memory.value, mask)
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
