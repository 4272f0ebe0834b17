"""Blocks of attention logits, grids of blocks, and the base class of masks and biases.

Masks and biases are evaluated block by block, so that no implementation needs them as arrays `[T, S]`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import ArrayLike
from jaxtyping import Bool, Float, Int, Shaped

from transformer_jax.argument_checks import broadcasts, check_fields, check_offset
from transformer_jax.errors import InputError

Chosen = Int[ArrayLike, " _"] | Sequence[int]  # indices of selected queries or heads
Start = int | np.integer | Int[Array, ""]  # first index of a range, or a position
Offset = Annotated[Start, check_offset]
Shape = tuple[int, ...]
SeenOfBlock = Bool[Array, "#b #h #q #k"]  # for a block of logits
# one for each block of a grid, or one for all blocks
BlockFlags = bool | Shaped[np.ndarray | Array, "..."]
Rule = TypeVar("Rule", bound="LogitsRule")
FirstAndLast = tuple[Int[np.ndarray, "..."], Int[np.ndarray, "..."]]
# whether a block may be allowed in part; whether it certainly is entirely
Bounds = tuple[BlockFlags, BlockFlags]

MISSING_AXES = {2: (0, 1), 3: (1,), 4: ()}  # axes of [B H T S] that an array of this rank lacks
LOGITS_AXES = "batch elements", "heads", "queries", "keys"  # of the logits [B H T S]


class LogitsRule:
    """Base class of masks and biases: a rule for the logits that needs no array `[T, S]`.

    If a rule has the field `offset`, query i is at position i + `offset`.

    Raises:
        InputError: a field does not match its annotation.
    """

    __array_ufunc__ = None  # so that `array & mask` calls `__rand__` of the mask

    def __post_init__(self) -> None:
        check_fields(self)

    def check(self, shape: Shape) -> None:
        """Raise an `InputError` unless the arrays in this rule and its parts broadcast against logits of this shape."""
        for part in vars(self).values():
            if isinstance(part, LogitsRule):
                part.check(shape)

    def shifted(self: Rule, offset: Start) -> Rule:
        """Return the rule for queries that are `offset` positions later; arrays in it are not shifted."""
        moved = {
            name: entry.shifted(offset) if isinstance(entry, LogitsRule) else entry + offset
            for name, entry in vars(self).items()
            if name == "offset" or isinstance(entry, LogitsRule)
        }
        # it is a `pytree_class`
        return dataclasses.replace(self, **moved) if moved else self  # type: ignore[type-var]


class Range(NamedTuple):
    """Indices `start` … `start + size - 1` of one axis."""

    start: Start
    size: int


class BlockIndices(NamedTuple):
    """Indices of the logits of a block; the four arrays broadcast to its shape."""

    batch: Int[Array, "b 1 1 1"]
    head: Int[Array, "1 h 1 1"]
    query: Int[Array, "1 1 q 1"]
    key: Int[Array, "1 1 1 k"]


class ScoreBlock(NamedTuple):
    """Block of the logits `[B, H, T, S]`: a range of each axis.

    A range whose start is a multiple of its size may extend beyond its axis. Results beyond the axis are not used.
    """

    batch: Range
    head: Range
    query: Range
    key: Range

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.batch.size, self.head.size, self.query.size, self.key.size

    def indices(self) -> BlockIndices:
        """Return the indices of batch elements, heads, queries and keys."""
        ranges = [start + jnp.arange(size, dtype=jnp.int32) for start, size in self]
        return BlockIndices(*jnp.ix_(*ranges))

    def part(
        self, array: Shaped[Array | np.ndarray, "#B #H #T #S"]
    ) -> Shaped[Array, "#b #h #q #k"]:
        """Return the block of an array; an axis of size 1 broadcasts.

        Raises:
            InputError: the block starts beyond the array, or is larger than it.
        """
        part = jnp.asarray(array)
        for axis, (start, size) in enumerate(self):
            length = array.shape[axis]
            if length == 1:
                continue
            if size > length or (isinstance(start, int) and start >= length):
                raise InputError(
                    f"an array of shape {array.shape} has {length} {LOGITS_AXES[axis]}; it must"
                    f" have {start + size}"
                )
            part = _cut(part, axis, start, size)
        return part

    def of_heads(self, array: Shaped[Array | np.ndarray, "H ..."]) -> Shaped[Array, "h ..."]:
        """Return the part of an array that belongs to the heads of the block."""
        return _cut(jnp.asarray(array), 0, *self.head)

    def add_part(
        self, total: Shaped[Array, "#B #H #T #S"], part: Shaped[Array, "#b #h #q #k"]
    ) -> Shaped[Array, "#B #H #T #S"]:
        """Add `part` to the block of `total` that `part(total)` reads; elements beyond an axis must be zero."""
        starts: list[Start] = []
        for axis, (start, size) in enumerate(self):
            length = total.shape[axis]
            first = 0 if length == 1 else start
            if length > 1 and length % size:
                first = jnp.minimum(start, length - size)
                part = jnp.roll(part, start - first, axis)
            starts.append(first)
        old = lax.dynamic_slice(total, starts, part.shape)
        return lax.dynamic_update_slice(total, old + part.astype(total.dtype), starts)


def _cut(array: Array, axis: int, start: Start, size: int) -> Array:
    """The indices of a block along an axis; blocks start at multiples of `size`."""
    length = array.shape[axis]
    if isinstance(start, int) and start == 0 and size == length:
        return array
    if length % size == 0:
        return lax.dynamic_slice_in_dim(array, start, size, axis)
    # The last block extends beyond the array: take the last `size` indices, and roll them so that `start` is first.
    # The other indices of that block are beyond the end, and their results are dropped.
    first = jnp.minimum(start, length - size)
    return jnp.roll(lax.dynamic_slice_in_dim(array, first, size, axis), first - start, axis)


def whole_block(shape: Shape) -> ScoreBlock:
    """Return the block of all logits `[..., T, S]`; rank 3 has no head axis, rank 2 no batch axis either."""
    sizes = list(shape[-4:])
    for axis in MISSING_AXES[len(sizes)]:
        sizes.insert(axis, 1)
    return ScoreBlock(*(Range(0, size) for size in sizes))


def with_all_axes(name: str, array: Array, hint: str = "") -> Shaped[Array, "#B #H #T #S"]:
    """Add axes of size 1 to a mask or a bias `[T, S]` or `[B, T, S]`, so that it has rank 4 as `[B, H, T, S]`.

    Raises:
        InputError: the array has another rank.
    """
    if array.ndim not in MISSING_AXES:
        raise InputError(
            f"{name} has shape {array.shape}; it must be [T, S], [B, T, S] or [B, H, T, S]; any"
            f" axis may be 1{hint}"
        )
    return jnp.expand_dims(array, MISSING_AXES[array.ndim])


def check_fits(shape: Shape, logits_shape: Shape, what: str, hint: str = "") -> None:
    """Raise an `InputError` unless an array of shape `[B, H, T, S]` broadcasts against logits `[..., T, S]`."""
    if not broadcasts(shape, whole_block(logits_shape).shape):
        raise InputError(
            f"{what} does not broadcast against attention logits of shape {logits_shape}{hint}"
        )


class BlockGrid(NamedTuple):
    """Grid of logit blocks of one batch element, the same for all heads: `nq` query ranges times `nk` key ranges."""

    batch: Start  # index of the batch element
    num_queries: int  # T
    num_keys: int  # S
    query_size: int  # queries per block
    key_size: int

    def queries(self) -> FirstAndLast:
        """Return the first and the last query of each block, `[nq, 1]`."""
        first = np.arange(0, self.num_queries, self.query_size)[:, None]
        return first, np.minimum(first + self.query_size, self.num_queries) - 1

    def keys(self) -> FirstAndLast:
        """Return the first and the last key of each block, `[nk]`."""
        first = np.arange(0, self.num_keys, self.key_size)
        return first, np.minimum(first + self.key_size, self.num_keys) - 1

    def row(self, array: Shaped[Array | np.ndarray, "#B ..."]) -> Shaped[Array, "..."]:
        """Return the part of an array that belongs to the batch element."""
        return jnp.asarray(array)[self.batch if len(array) > 1 else 0]

    def in_blocks(
        self, array: Shaped[Array | np.ndarray, "#B length"], size: int
    ) -> Shaped[Array, "blocks size"]:
        """Split values per query or key of this batch element into blocks; the last value is repeated as padding.

        `size` is the size of the blocks, `query_size` or `key_size`.
        """
        row = self.row(array)
        return jnp.pad(row, (0, -len(row) % size), mode="edge").reshape(-1, size)


@jax.custom_jvp
def nan_for_minus_infinity(products: Float[Array, "..."]) -> Float[Array, "..."]:
    """Replace -∞ by NaN, so that an overflow is not mistaken for a hidden key. +∞ becomes NaN in the softmax."""
    return jnp.where(jnp.isneginf(products), jnp.nan, products)


nan_for_minus_infinity.defjvp(
    lambda primals, tangents: (nan_for_minus_infinity(*primals), *tangents)
)
