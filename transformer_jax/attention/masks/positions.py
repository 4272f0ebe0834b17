"""Masks that follow from positions alone: a window, a prefix, a function of your own."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int

from transformer_jax.argument_checks import Count, broadcasts, check_offset
from transformer_jax.attention.masks.arrays import fit_mask
from transformer_jax.attention.masks.symbolic import AttentionMask, Reach, reach_without_offset
from transformer_jax.attention.score_block import BlockFlags, BlockGrid, Bounds, Offset, ScoreBlock, Start
from transformer_jax.errors import InputError
from transformer_jax.trees import pytree_class, shown, static_field


@pytree_class
class Window(AttentionMask):
    """The query at position p sees the keys p - left … p + right (Beltagy et al. 2020); None for no limit.

    Raises:
        InputError: `left` or `right` is below 0.
    """

    left: Count | None
    right: Count | None
    offset: Offset = 0  # position of query 0

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

    @property
    def reach(self) -> Reach | None:
        return reach_without_offset(self.offset, Reach(self.left, self.right))


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


@pytree_class
class MaskFunction(AttentionMask):
    """A mask of one's own: a function of the indices of batch element, head, query and key.

        every_third = MaskFunction(lambda batch, head, query, key: (query - key) % 3 == 0)

    Raises:
        InputError: `fn` cannot be called; at use, it gives something else than truth values of the indices' shape.
    """

    fn: Callable[..., Any] = static_field()  # of four arrays of integers, which broadcast; and of `arrays`
    arrays: tuple[Any, ...] = ()  # more arguments of `fn`; what it reads besides must not be traced
    offset: Offset = 0  # added to the index of the query

    def allows(self, block: ScoreBlock) -> Bool[Array, "#b #h #q #k"]:
        at = block.indices()
        result = self.fn(at.batch, at.head, at.query + self.offset, at.key, *self.arrays)
        name = shown(self.fn)
        if not isinstance(result, Array | np.ndarray | bool | np.bool_) or jnp.asarray(result).dtype != bool:
            kind = getattr(result, "dtype", type(result).__name__)
            raise InputError(f"the mask function {name} gave {kind}; it must give booleans, True = may attend")
        if not broadcasts(np.shape(result), block.shape):
            raise InputError(
                f"the mask function {name} gave shape {np.shape(result)} for indices that broadcast to {block.shape}; "
                "it must give one truth value for each logit, or sizes of 1"
            )
        return jnp.asarray(result).reshape((1,) * (4 - np.ndim(result)) + np.shape(result))
