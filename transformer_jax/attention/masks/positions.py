"""Masks that follow from positions alone: causal, a window, a prefix. See `attention.masks.symbolic`."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int

from transformer_jax.array_checks import check_offset
from transformer_jax.attention.masks.arrays import fit_mask
from transformer_jax.attention.masks.symbolic import AttentionMask, Masks
from transformer_jax.attention.pytree_class import pytree_class, shown
from transformer_jax.attention.score_block import BlockFlags, BlockGrid, Bounds, ScoreBlock, Start
from transformer_jax.errors import InputError, check_whole


@pytree_class
class Causal(AttentionMask):
    """Each query sees the keys up to its own position (Vaswani et al. 2017, section 3.2.3)."""

    offset: Start = 0  # position of query 0

    def __post_init__(self) -> None:
        check_offset("offset", self.offset)

    def allows(self, block: ScoreBlock) -> Bool[Array, "#b #h #q #k"]:
        at = block.indices()
        return at.key <= at.query + self.offset

    def bounds(self, grid: BlockGrid) -> Bounds:
        (first_query, last_query), (first_key, last_key) = grid.queries(), grid.keys()
        return first_key <= last_query + self.offset, last_key <= first_query + self.offset


def causal_and(mask: Masks | None) -> Masks:
    """`Causal()`, combined with a mask if there is one."""
    return Causal() if mask is None else Causal() & mask


@pytree_class
class Window(AttentionMask):
    """The query at position p sees the keys p - left … p + right (Beltagy et al. 2020); None for no limit.

    Raises:
        InputError: `left` or `right` is below 0.
    """

    left: int | None
    right: int | None
    offset: Start = 0  # position of query 0

    def __post_init__(self) -> None:
        for name, size in (("left", self.left), ("right", self.right)):
            if size is not None:
                check_whole(name, size, 0, "; None for no limit")
        check_offset("offset", self.offset)

    def allows(self, block: ScoreBlock) -> Bool[Array, "#b #h #q #k"]:
        at = block.indices()
        ahead = at.key - at.query - self.offset
        allowed = jnp.ones((1, 1, 1, 1), bool)
        if self.left is not None:
            allowed &= ahead >= -self.left
        if self.right is not None:
            allowed &= ahead <= self.right
        return allowed

    def bounds(self, grid: BlockGrid) -> Bounds:
        (first_query, last_query), (first_key, last_key) = grid.queries(), grid.keys()
        least, most = first_key - last_query - self.offset, last_key - first_query - self.offset  # of key - position
        some: BlockFlags = True
        every: BlockFlags = True
        if self.left is not None:
            some, every = most >= -self.left, least >= -self.left
        if self.right is not None:
            some, every = some & (least <= self.right), every & (most <= self.right)
        return some, every


@pytree_class
class Prefix(AttentionMask):
    """Every query sees the first `n` keys: `Causal() | Prefix(n)` is the mask of a prefix language model."""

    n: Start | Int[ArrayLike, " B"]  # one for all, or one for each batch element

    def __post_init__(self) -> None:
        if isinstance(self.n, Array | np.ndarray) and np.ndim(self.n) > 0:
            if self.n.ndim != 1 or not jnp.issubdtype(self.n.dtype, jnp.integer):
                raise InputError(f"n is {shown(self.n)}; it must be a whole number, or one for each batch element [B]")
        else:
            check_offset("n", self.n, 0)

    def _rows(self) -> Int[Array, "#B"]:
        return jnp.atleast_1d(jnp.asarray(self.n))

    def allows(self, block: ScoreBlock) -> Bool[Array, "#b #h #q #k"]:
        return block.indices().key < block.part(self._rows()[:, None, None, None])

    def bounds(self, grid: BlockGrid) -> Bounds:
        first, last = grid.keys()
        n: Any = self.n
        if not isinstance(n, int):
            rows = self._rows()
            n = rows[grid.batch if len(rows) > 1 else 0]
        return first < n, last < n

    def check(self, shape: tuple[int, ...]) -> None:
        fit_mask(jnp.broadcast_to(True, (np.size(self.n), 1, 1, 1)), shape, repr(self))
