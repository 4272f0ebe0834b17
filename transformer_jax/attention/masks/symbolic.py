"""Symbolic masks: which query may see which key, without an array `[T, S]`.

    mask = Causal() & Window(256, 0) & Padding(valid)

Masks combine with `&`, `|` and `~`, also with array masks (`transformer_jax.attention.masks.arrays`). They are pytrees,
so that a compiled function can take them as arguments. `mask.show(T, S)` draws a mask.

Query i is at position i + `offset`, and key j at position j. The default offset is 0; in cached decoding it is the
number of positions before the first query, and it may be traced.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool

from transformer_jax.argument_checks import Count
from transformer_jax.attention.masks.arrays import USE_PADDING_MASK, Mask, expand_mask
from transformer_jax.attention.score_block import (
    MISSING_AXES,
    BlockGrid,
    Bounds,
    LogitsRule,
    Offset,
    Range,
    ScoreBlock,
    SeenOfBlock,
    Shape,
    check_fits,
    whole_block,
)
from transformer_jax.errors import MAX_SIZE, InputError, check_sizes, shortened
from transformer_jax.trees import pytree_class, static_field

MAX_CELLS = 32  # along each side of a drawing
SEEN, SOME, UNSEEN = "■", "▒", "·"


class Drawing(str):
    """String whose `repr` is the text itself, so that a Python prompt shows the drawing."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class AttentionMask(LogitsRule):
    """Base class of symbolic masks.

    A subclass is a `pytree_class` with `allows`, and with `bounds` if blocks can be skipped.

    Raises:
        InputError: at use, if an array in the mask does not broadcast against the logits.
    """

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        """Return whether each query of a block may see each key."""
        raise NotImplementedError

    def bounds(self, grid: BlockGrid) -> Bounds:
        """Return for each block of a grid whether it may be allowed in part, and whether it certainly is entirely.

        Forbidden blocks are skipped, and entirely allowed blocks are computed without the mask.
        """
        return True, False

    def show(self, num_queries: int, num_keys: int, *, batch: int = 0, head: int = 0) -> Drawing:
        """Draw the mask: a line for each query, ■ for a key that it may see and · for any other key.

        A large mask is drawn in blocks; ▒ is a block that may be seen in part.

        Raises:
            InputError: a size is below 1, or an array in the mask has no such batch element, head, query or key.
        """
        check_sizes(num_queries=num_queries, num_keys=num_keys)
        check_sizes(0, batch=batch, head=head)
        # queries and keys per sign
        height = -(-num_queries // MAX_CELLS)
        width = -(-num_keys // MAX_CELLS)
        starts = np.arange(0, num_keys, width)
        sizes = np.minimum(starts + width, num_keys) - starts
        lines = []
        for first in range(0, num_queries, height):
            queries = Range(first, min(height, num_queries - first))
            block = ScoreBlock(Range(batch, 1), Range(head, 1), queries, Range(0, num_keys))
            rows = np.broadcast_to(np.asarray(self.allows(block)), block.shape)[0, 0]
            num_seen = np.add.reduceat(rows.sum(0), starts)
            signs = np.full(len(starts), SOME)
            signs[num_seen == 0] = UNSEEN
            signs[num_seen == len(rows) * sizes] = SEEN
            lines.append(" ".join(signs))
        return Drawing("\n".join(lines))

    def __and__(self, other: "Masks") -> "AttentionMask":
        return Combined(self, as_attention_mask(other), operator.and_)

    def __rand__(self, other: "Masks") -> "AttentionMask":
        return as_attention_mask(other) & self

    def __or__(self, other: "Masks") -> "AttentionMask":
        return Combined(self, as_attention_mask(other), operator.or_)

    def __ror__(self, other: "Masks") -> "AttentionMask":
        return as_attention_mask(other) | self

    def __invert__(self) -> "AttentionMask":
        return Opposite(self)

    def _as_factor(self) -> str:
        """Text of this mask beside `&`."""
        return repr(self)


Masks = AttentionMask | Mask


def as_attention_mask(mask: Masks) -> AttentionMask:
    """Return a symbolic mask unchanged, and an array as `ArrayMask`.

    Raises:
        InputError: the argument is neither.
    """
    if isinstance(mask, AttentionMask):
        return mask
    if callable(mask) or isinstance(mask, LogitsRule | str):
        raise InputError(
            f"mask is {shortened(mask)}; it must be a mask such as Causal(), or an array"
        )
    return ArrayMask(mask)


def mask_array(mask: Masks, shape: Shape) -> Bool[Array, "..."]:
    """Convert a mask to an array that broadcasts against logits of shape `[..., T, S]`.

    Raises:
        InputError: the mask does not broadcast.
    """
    mask = as_attention_mask(mask)
    mask.check(shape)
    is_seen = mask.allows(whole_block(shape))  # rank 4; the logits may have fewer axes
    return jnp.squeeze(is_seen, MISSING_AXES.get(len(shape), ()))


@pytree_class
class Causal(AttentionMask):
    """Let each query see the keys up to its own position (Vaswani et al. 2017, section 3.2.3)."""

    offset: Offset = 0  # position of query 0

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        index = block.indices()
        return index.key <= index.query + self.offset

    def bounds(self, grid: BlockGrid) -> Bounds:
        return Window(None, 0, self.offset).bounds(grid)


@pytree_class
class Window(AttentionMask):
    """Let the query at position p see the keys p - left … p + right (Beltagy et al. 2020); None for no limit.

    Raises:
        InputError: `left` or `right` is below 0.
    """

    left: Count | None
    right: Count | None
    offset: Offset = 0  # position of query 0

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        index = block.indices()
        ahead = index.key - index.query - self.offset
        left, right = self._reach()
        return (ahead >= -left) & (ahead <= right)

    def bounds(self, grid: BlockGrid) -> Bounds:
        first_query, last_query = grid.queries()
        first_key, last_key = grid.keys()
        # how far the keys of a block are ahead of its queries, [nq nk]
        min_ahead = first_key - last_query - self.offset
        max_ahead = last_key - first_query - self.offset
        left, right = self._reach()
        allows_some = (max_ahead >= -left) & (min_ahead <= right)
        allows_all = (min_ahead >= -left) & (max_ahead <= right)
        return allows_some, allows_all

    def _reach(self) -> tuple[int, int]:
        return (
            MAX_SIZE if self.left is None else self.left,
            MAX_SIZE if self.right is None else self.right,
        )


@pytree_class
class ArrayMask(AttentionMask):
    """Mask given as an array, of the ranks in `transformer_jax.attention.masks.arrays`.

    Raises:
        InputError: `expand_mask` rejects the array.
    """

    array: Mask

    def __post_init__(self) -> None:
        object.__setattr__(self, "array", expand_mask(self.array).reshape(np.shape(self.array)))

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        return block.part(expand_mask(self.array))

    def check(self, shape: Shape) -> None:
        check_fits(
            expand_mask(self.array).shape,
            shape,
            f"mask of shape {np.shape(self.array)}",
            USE_PADDING_MASK,
        )


@pytree_class
class Combined(AttentionMask):
    """Combination of two masks: `first & second` (both allow a key) or `first | second` (either allows it)."""

    first: AttentionMask
    second: AttentionMask
    combine: Callable[[Any, Any], Any] = static_field()  # `operator.and_` or `operator.or_`

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        return self.combine(self.first.allows(block), self.second.allows(block))

    def bounds(self, grid: BlockGrid) -> Bounds:
        bounds = map(self.combine, self.first.bounds(grid), self.second.bounds(grid))
        allows_some, allows_all = bounds
        return allows_some, allows_all

    def __repr__(self) -> str:
        if self.combine is operator.or_:
            return f"{self.first} | {self.second}"
        return f"{self.first._as_factor()} & {self.second._as_factor()}"

    def _as_factor(self) -> str:
        return f"({self})" if self.combine is operator.or_ else repr(self)


@pytree_class
class Opposite(AttentionMask):
    """Negation `~mask`, which allows the keys that a mask forbids."""

    mask: AttentionMask

    def allows(self, block: ScoreBlock) -> SeenOfBlock:
        return ~self.mask.allows(block)

    def bounds(self, grid: BlockGrid) -> Bounds:
        allows_some, allows_all = self.mask.bounds(grid)
        return allows_all ^ True, allows_some ^ True  # unlike `~`, also negates Python booleans

    def __repr__(self) -> str:
        return f"~({self.mask})" if isinstance(self.mask, Combined) else f"~{self.mask}"


def reach(mask: AttentionMask | None) -> tuple[int | None, int | None] | None:
    """Return how far every query sees to the left and right (None: no limit), or None if the mask is not a window."""
    match mask:
        case None:
            return None, None
        case Causal(offset=int(0)):
            return None, 0
        case Window(left=left, right=right, offset=int(0)):
            return left, right
        case Combined(first, second, operator.and_):
            one = reach(first)
            other = reach(second)
            if one is not None and other is not None:
                return _smaller(one[0], other[0]), _smaller(one[1], other[1])
    return None


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def combine_masks(*masks: Masks | None) -> AttentionMask | Bool[Array, "#B #H #T #S"] | None:
    """Combine masks with `&`; None allows every key. The result is None if every mask is None.

    Arrays give an array. If a symbolic mask such as `Causal()` is among the masks, the result is an `AttentionMask`.

    Raises:
        InputError: `expand_mask` rejects a mask, or arrays do not broadcast; the message names their shapes.
    """
    present: list[Any] = [mask for mask in masks if mask is not None]
    if not any(isinstance(mask, AttentionMask) for mask in present):
        present = [expand_mask(mask) for mask in present]
    try:
        return functools.reduce(operator.and_, present) if present else None
    except TypeError:
        shapes = " and ".join(str(mask.shape) for mask in present)
        raise InputError(f"masks of shapes {shapes} do not broadcast") from None
