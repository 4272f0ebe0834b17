"""Biases that depend on the distance between query and key: ALiBi, and T5's learned relative bias."""

import math

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, Shaped

from transformer_jax.argument_checks import Size, as_array
from transformer_jax.attention.biases import AddedBias, Logits
from transformer_jax.attention.score_block import Offset, ScoreBlock, Shape, whole_block
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.trees import pytree_class, static_field


@pytree_class
class ALiBi(AddedBias):
    """ALiBi: `- slope_h · |i - j|`, a penalty on distance with a different slope in each head (Press et al. 2022)."""

    num_heads: Size = static_field()  # H
    offset: Offset = 0  # position of query 0

    def apply(self, logits: Logits, block: ScoreBlock) -> Logits:
        index = block.indices()
        distance = jnp.abs(index.query + self.offset - index.key)
        slopes_of_heads = alibi_slopes(self.num_heads).astype(logits.dtype)  # [H]
        slopes = block.of_heads(slopes_of_heads)[:, None, None]  # [h 1 1]
        return logits - slopes * distance.astype(logits.dtype)

    def check(self, shape: Shape) -> None:
        _check_heads("num_heads", self.num_heads, shape)


def alibi_slopes(num_heads: int) -> Float[np.ndarray, " H"]:
    """Return the slope of each head: `2^(-8 h / H)`, h = 1 … H, if H is a power of two.

    For other H: the slopes of the next smaller power of two, then every second slope of the next larger power (Press et
    al. 2022, section 3 and their code).
    """
    power = 2 ** int(math.log2(num_heads))
    slopes: Float[np.ndarray, " H"] = 2.0 ** (-8 / power * np.arange(1, power + 1))
    if power == num_heads:
        return slopes
    return np.concatenate([slopes, alibi_slopes(2 * power)[::2][: num_heads - power]])


@pytree_class
class RelativeBias(AddedBias):
    """Relative position bias of T5: a learned number for each head and bucket of distances (Raffel et al. 2020).

    Raises:
        InputError: the table is not a floating-point array `[num_buckets, H]` with at least 4 buckets (an even number
            if `bidirectional`), or `max_distance` does not exceed the number of buckets of a single distance.
    """

    table: Float[Array | np.ndarray, "num_buckets H"]
    # Half of the buckets are for keys after the query; if False, such keys count as distance 0.
    bidirectional: bool = static_field(True)
    max_distance: int = static_field(128)  # this and all larger distances share a bucket
    offset: Offset = 0  # position of query 0

    def __post_init__(self) -> None:
        super().__post_init__()
        table = as_array("table", self.table)
        object.__setattr__(self, "table", table)
        parts = 2 if self.bidirectional else 1
        if table.ndim != 2 or not table.size or len(table) < 4 or len(table) % parts:
            even = ", an even number" if self.bidirectional else ""
            raise InputError(
                f"table has shape {table.shape}; it must be [num_buckets, H], at least 4 buckets{even}"
            )
        if not jnp.issubdtype(table.dtype, jnp.floating):
            raise InputError(f"table has type {table.dtype}; it must be of a floating-point type")
        check_sizes(len(table) // parts // 2 + 1, max_distance=self.max_distance)

    def apply(self, logits: Logits, block: ScoreBlock) -> Logits:
        (first_query, num_queries) = block.query
        (first_key, num_keys) = block.key
        # Distance from query to key on each diagonal: 0 … k - 1, then -q … -1, as `_along_diagonals` counts them.
        ahead = jnp.concatenate([jnp.arange(num_keys), jnp.arange(-num_queries, 0)])
        ahead += first_key - first_query - self.offset
        buckets = relative_buckets(ahead, len(self.table), self.max_distance, self.bidirectional)
        table = block.of_heads(self.table.T)  # [h num_buckets]
        diagonals = jnp.take(table, buckets, axis=1)  # [h q+k]
        bias = _along_diagonals(diagonals, num_queries, num_keys)  # [h q k]
        return logits + bias.astype(logits.dtype)[None]

    def check(self, shape: Shape) -> None:
        _check_heads("the number of columns of the table", self.table.shape[1], shape)


def relative_buckets(
    ahead: Int[ArrayLike, "..."],
    num_buckets: int,
    max_distance: int = 128,
    bidirectional: bool = True,
) -> Int[Array, "..."]:
    """Return the bucket of each distance, key minus query position (Raffel et al. 2020, section 2.1, and their code).

    Half of the buckets hold a single distance each; the others grow logarithmically up to `max_distance`.
    """
    ahead = jnp.asarray(ahead)
    size = num_buckets // 2 if bidirectional else num_buckets
    exact = size // 2
    distances = np.arange(max_distance + 1)
    far = np.log(np.maximum(distances, 1) / exact) / math.log(max_distance / exact) * (size - exact)
    # 1e-9: a distance at the lower edge of a bucket must not fall below it by rounding of the logarithm.
    logarithmic = np.minimum(exact + np.floor(far + 1e-9), size - 1)
    table = np.where(distances < exact, distances, logarithmic).astype(np.int32)
    distance = jnp.abs(ahead) if bidirectional else jnp.maximum(-ahead, 0)
    bucket = jnp.asarray(table)[jnp.minimum(distance, max_distance)]
    return jnp.where(ahead > 0, bucket + size, bucket) if bidirectional else bucket


def _along_diagonals(
    values: Shaped[Array, "h n"], num_queries: int, num_keys: int
) -> Shaped[Array, "h q k"]:
    """Return the matrix with elements `values[j - i]`, a negative index counting from the end; n is q + k.

    The values are repeated and reshaped to rows of n - 1 elements, so that each row begins one element further on. A
    gather (a scatter in the gradient) would be an order of magnitude slower.
    """
    n = values.shape[-1]
    num_heads = len(values)
    repeated = jnp.broadcast_to(values[:, None], (num_heads, num_queries, n))
    repeated = repeated.reshape(num_heads, -1)
    rows = repeated[:, : num_queries * (n - 1)].reshape(num_heads, num_queries, n - 1)
    return rows[:, :, :num_keys]


def _check_heads(name: str, number: int, shape: Shape) -> None:
    num_heads = whole_block(shape).head.size
    if number != num_heads:
        raise InputError(
            f"{name} of the bias is {number}; it must be {num_heads}, as in the attention"
        )
