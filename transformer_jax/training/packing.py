"""Many small arrays as one: what is done to each of them takes longer to begin, and to compile, than to do."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

# Elements of an array that is packed; to copy a larger one costs more than packing it saves. Checkpoints hold the
# optimizer's arrays packed: with another number, earlier ones can't be read.
LARGEST = 2**15


def pack(tree: Any) -> list[Array]:
    """The arrays of a pytree as a list: a vector of all the small ones behind each other, then the large ones."""
    leaves = jax.tree.leaves(tree)
    small = [jnp.ravel(leaf) for leaf in leaves if _is_small(leaf)]
    large = [leaf for leaf in leaves if not _is_small(leaf)]
    return [jnp.concatenate(small), *large] if small else large


def unpack(packed: list[Array], like: Any) -> Any:
    """The pytree of which `pack` made this, with the structure, the shapes and the types of `like`."""
    leaves, treedef = jax.tree.flatten(like)
    sizes = [leaf.size for leaf in leaves if _is_small(leaf)]
    small = iter(jnp.split(packed[0], np.cumsum(sizes)[:-1]) if sizes else [])
    large = iter(packed[1:] if sizes else packed)
    unpacked = [next(small).reshape(leaf.shape) if _is_small(leaf) else next(large) for leaf in leaves]
    return treedef.unflatten([array.astype(leaf.dtype) for array, leaf in zip(unpacked, leaves, strict=True)])


def _is_small(leaf: Array) -> bool:
    return leaf.size <= LARGEST
