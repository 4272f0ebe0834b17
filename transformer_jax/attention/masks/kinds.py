"""Masks for prefixes, padding and packed segments, and masks computed by a function of your own.

Their base class, the causal mask and the window are in `attention.masks.symbolic`.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, Shaped

from transformer_jax.argument_checks import as_array, broadcasts, check_offset
from transformer_jax.attention.masks.arrays import padding_mask
from transformer_jax.attention.masks.symbolic import AttentionMask
from transformer_jax.attention.score_block import (
    BlockGrid,
    Bounds,
    Offset,
    ScoreBlock,
    SeenOfBlock,
    Shape,
    Start,
    check_fits,
)
from transformer_jax.errors import InputError
from transformer_jax.trees import pytree_class, shown, static_field


@pytree_class
class Prefix(AttentionMask):
    """Let every query see the first `n` keys: `Causal() | Prefix(n)` is the mask of a prefix language model."""

    n: Start | Int[ArrayLike, " B"]  # one for all, or one for each batch element

    def __post_init__(self) -> None:
        n = as_array("n", self.n)
        if n.ndim == 0:
            check_offset("n", self.n, 0)
        elif n.ndim > 1 or not jnp.issubdtype(n.dtype, jnp.integer):
            raise InputError(
                f"n is {shown(self.n)}; it must be a whole number, or one for each batch element"
                " [B]"
            )

    def _rows(self) -> Int[Array, "#B"]:
        return jnp.atleast_1d(jnp.asarray(self.n))

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        return block.indices().key < block.part(self._rows()[:, None, None, None])

    def bounds(self, grid: BlockGrid) -> Bounds:
        first, last = grid.keys()
        n = self.n if isinstance(self.n, int) else grid.row(self._rows())
        return first < n, last < n

    def check(self, shape: Shape) -> None:
        check_fits((np.size(self.n), 1, 1, 1), shape, repr(self))


@pytree_class
class Padding(AttentionMask):
    """Let every query see the keys of real tokens, not those of padding.

    Raises:
        InputError: `valid` is not `[B, S]`, or neither boolean nor integer 0/1.
    """

    valid: Shaped[Array | np.ndarray, "#B S"]  # True (or 1) for real tokens

    def __post_init__(self) -> None:
        object.__setattr__(self, "valid", padding_mask(self.valid)[:, 0, 0])

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        return block.part(self.valid[:, None, None])

    def bounds(self, grid: BlockGrid) -> Bounds:
        valid = grid.in_blocks(self.valid, grid.key_size)
        return valid.any(1), valid.all(1)

    def check(self, shape: Shape) -> None:
        check_fits(self.valid[:, None, None].shape, shape, repr(self))


@pytree_class
class Segments(AttentionMask):
    """Let a query see the keys of its own segment, so that sequences packed into one row do not see each other.

    Raises:
        InputError: the ids are not `[B, T]` and `[B, S]` of an integer type.
    """

    query_ids: Int[Array | np.ndarray, "#B T"]
    key_ids: Int[Array | np.ndarray, "#B S"]

    def __post_init__(self) -> None:
        for name, letter in (("query_ids", "T"), ("key_ids", "S")):
            ids = as_array(name, getattr(self, name))
            if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
                raise InputError(
                    f"{name} is {shown(ids)}; it must be [B, {letter}] of an integer type"
                )
            object.__setattr__(self, name, jnp.asarray(ids))

    def _ids(self) -> tuple[Int[Array | np.ndarray, "..."], ...]:
        return self.query_ids[:, None, :, None], self.key_ids[:, None, None]

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        query_ids, key_ids = self._ids()
        return block.part(query_ids) == block.part(key_ids)

    def bounds(self, grid: BlockGrid) -> Bounds:
        queries = grid.in_blocks(self.query_ids, grid.query_size)  # [nq q]
        keys = grid.in_blocks(self.key_ids, grid.key_size)  # [nk k]
        min_query, max_query = queries.min(1)[:, None], queries.max(1)[:, None]  # [nq 1]
        min_key, max_key = keys.min(1), keys.max(1)  # [nk]
        return (min_query <= max_key) & (min_key <= max_query), False

    def check(self, shape: Shape) -> None:
        for ids in self._ids():
            check_fits(ids.shape, shape, repr(self))


@pytree_class
class MaskFunction(AttentionMask):
    """Mask computed by a function of your own from the indices of batch element, head, query and key.

        every_third = MaskFunction(lambda batch, head, query, key: (query - key) % 3 == 0)

    Raises:
        InputError: `fn` is not callable; at use, its result is not boolean or does not broadcast to the logits.
    """

    # takes four integer arrays that broadcast, then `arrays`
    fn: Callable[..., Any] = static_field()
    arrays: tuple[Any, ...] = ()  # further arguments of `fn`; it must not close over traced arrays
    offset: Offset = 0  # added to the index of the query

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        batch, head, query, key = block.indices()
        result = self.fn(batch, head, query + self.offset, key, *self.arrays)
        is_mask = getattr(result, "dtype", type(result)) == bool  # noqa: E721
        if not is_mask or not broadcasts(np.shape(result), block.shape):
            raise InputError(
                f"the mask function {shown(self.fn)} returned {shown(result)}; it must return"
                f" booleans (True = attend) whose shape broadcasts to {block.shape}"
            )
        return jnp.expand_dims(result, range(4 - np.ndim(result)))
