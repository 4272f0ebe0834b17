"""Small arrays joined to one vector: an operation on each takes longer to start, and to compile, than to do."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.trees import Arrays, Shapes

Tree = TypeVar("Tree")


class Packed(NamedTuple):
    """The arrays of a pytree in another arrangement."""

    vectors: dict[str, Any]  # for each type the small arrays, one behind the other; Any: see `_join`
    large: list[Any]


class Packing:
    """Packs pytrees of one structure, and unpacks them; both inside compiled functions and outside.

    Args:
        like: a pytree of arrays, or of their shapes and types, with that structure.
        max_size: elements of an array that is packed; larger ones stay apart.
    """

    def __init__(self, like: Arrays | Shapes, max_size: int) -> None:
        self._max_size = max_size
        leaves, self._structure = jax.tree.flatten(like)
        self._like = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
        self._packed = jax.eval_shape(self.pack, jax.tree.unflatten(self._structure, self._like))

    def pack(self, tree: Arrays) -> Packed:
        """The arrays of a pytree, packed."""
        leaves = jax.tree.leaves(tree)
        small: dict[str, list[ArrayLike]] = {}
        for leaf, like in zip(leaves, self._like, strict=True):
            if self._is_small(like):
                small.setdefault(str(like.dtype), []).append(leaf)
        large = [leaf for leaf, like in zip(leaves, self._like, strict=True) if not self._is_small(like)]
        return Packed({dtype: _join(arrays) for dtype, arrays in small.items()}, large)

    def unpack(self, packed: Packed) -> Any:  # Any: the pytree that was packed
        """The pytree that `pack` was given."""
        sizes: dict[str, list[int]] = {}
        for like in self._like:
            if self._is_small(like):
                sizes.setdefault(str(like.dtype), []).append(like.size)
        small = {dtype: iter(_split(packed.vectors[dtype], sizes[dtype])) for dtype in sizes}
        large = iter(packed.large)
        leaves = [
            next(small[str(like.dtype)]).reshape(like.shape) if self._is_small(like) else next(large)
            for like in self._like
        ]
        return jax.tree.unflatten(self._structure, leaves)

    def _is_small(self, leaf: jax.ShapeDtypeStruct) -> bool:
        size: int = leaf.size
        return size <= self._max_size

    def pack_within(self, tree: Tree) -> Tree:
        """A pytree in which each part of this structure is packed: a training state, with its averages of gradients."""
        return _replace(tree, self._structure, self._like, self.pack)

    def unpack_within(self, tree: Tree) -> Tree:
        """The pytree that `pack_within` was given."""
        return _replace(tree, jax.tree.structure(self._packed), jax.tree.leaves(self._packed), self.unpack)


def _replace(
    tree: Tree,
    structure: jax.tree_util.PyTreeDef,
    like: Sequence[jax.ShapeDtypeStruct],
    change: Callable[[Any], Any],
) -> Tree:
    """Change each part of a tree that has this structure, with leaves of these shapes."""

    def fits(part: object) -> bool:
        leaves, found = jax.tree.flatten(part)
        return found == structure and [np.shape(leaf) for leaf in leaves] == [leaf.shape for leaf in like]

    replaced: Tree = jax.tree.map(lambda part: change(part) if fits(part) else part, tree, is_leaf=fits)
    return replaced


def _join(arrays: list[ArrayLike]) -> Array | np.ndarray:
    """One vector: inside a compiled function a traced one, outside a NumPy array, which is placed on devices later."""
    if any(isinstance(array, jax.core.Tracer) for array in arrays):
        return jnp.concatenate([jnp.ravel(array) for array in arrays])
    return np.concatenate([np.ravel(np.asarray(array)) for array in arrays])


def _split(vector: Array | np.ndarray, sizes: list[int]) -> Sequence[Array | np.ndarray]:
    ends = np.cumsum(sizes)[:-1]
    if isinstance(vector, jax.core.Tracer):
        return jnp.split(vector, ends)
    return np.split(np.array(vector), ends)  # a copy: the devices may use the vector's memory again
