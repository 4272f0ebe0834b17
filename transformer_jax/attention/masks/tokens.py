"""Masks that say something of each token: padding, and packed segments. See `attention.masks.symbolic`."""

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool, Int, Shaped

from transformer_jax.argument_checks import as_array
from transformer_jax.attention.masks.arrays import fit_mask, padding_mask
from transformer_jax.attention.masks.symbolic import AttentionMask
from transformer_jax.attention.score_block import BlockGrid, Bounds, ScoreBlock
from transformer_jax.errors import InputError
from transformer_jax.trees import pytree_class, shown


@pytree_class
class Padding(AttentionMask):
    """Every query sees the keys that hold a real token.

    Raises:
        InputError: `valid` is not `[B, S]`, or neither boolean nor integer 0/1.
    """

    valid: Shaped[ArrayLike, "#B S"]  # True (or 1) where there is a real token

    def __post_init__(self) -> None:
        object.__setattr__(self, "valid", padding_mask(self.valid)[:, 0, 0])

    def allows(self, block: ScoreBlock) -> Bool[Array, "#b #h #q #k"]:
        return block.part(jnp.asarray(self.valid)[:, None, None])

    def bounds(self, grid: BlockGrid) -> Bounds:
        valid = grid.of_keys(jnp.asarray(self.valid))
        return valid.any(1)[None], valid.all(1)[None]

    def check(self, shape: tuple[int, ...]) -> None:
        fit_mask(jnp.asarray(self.valid)[:, None, None], shape, repr(self))


@pytree_class
class Segments(AttentionMask):
    """A query sees the keys of its own segment: several sequences packed into one row do not see each other.

    Raises:
        InputError: the ids are not `[B, T]` and `[B, S]` of an integer type.
    """

    query_ids: Int[ArrayLike, "#B T"]
    key_ids: Int[ArrayLike, "#B S"]

    def __post_init__(self) -> None:
        for name in ("query_ids", "key_ids"):
            ids = as_array(name, getattr(self, name))
            if ids.ndim != 2 or not jnp.issubdtype(ids.dtype, jnp.integer):
                letter = "T" if name == "query_ids" else "S"
                raise InputError(f"{name} is {shown(ids)}; it must be [B, {letter}] of an integer type")
            object.__setattr__(self, name, jnp.asarray(ids))

    def allows(self, block: ScoreBlock) -> Bool[Array, "#b #h #q #k"]:
        queries = jnp.asarray(self.query_ids)[:, None, :, None]
        return block.part(queries) == block.part(jnp.asarray(self.key_ids)[:, None, None])

    def bounds(self, grid: BlockGrid) -> Bounds:
        queries, keys = grid.of_queries(jnp.asarray(self.query_ids)), grid.of_keys(jnp.asarray(self.key_ids))
        low, high = (extreme(queries, axis=1)[:, None] for extreme in (jnp.min, jnp.max))
        key_low, key_high = (extreme(keys, axis=1)[None] for extreme in (jnp.min, jnp.max))
        meet = (low <= key_high) & (key_low <= high)
        return meet, meet & (low == high) & (key_low == key_high)

    def check(self, shape: tuple[int, ...]) -> None:
        queries, keys = np.shape(self.query_ids), np.shape(self.key_ids)
        for ids_shape in ((queries[0], 1, queries[1], 1), (keys[0], 1, 1, keys[1])):
            fit_mask(np.broadcast_to(True, ids_shape), shape, repr(self))
