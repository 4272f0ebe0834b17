"""Values split into what is known before a program runs, and arrays: numbers in a mask decide which blocks it skips."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

Differentiable = list[Array]  # of a floating-point type
Others = list[Array]


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """A pytree without its arrays; two of equal skeletons differ in arrays alone."""

    structure: Any
    entries: tuple[Any, ...]  # numbers as they are, a dtype in the place of each array


def split(tree: Any) -> tuple[Skeleton, Differentiable, Others]:
    """The skeleton of a tree, its arrays of floating-point types, and the other arrays."""
    leaves, structure = jax.tree.flatten(tree)
    entries: list[Any] = []
    arrays: tuple[Differentiable, Others] = [], []
    for leaf in leaves:
        if isinstance(leaf, Array | np.ndarray):
            is_other = not jnp.issubdtype(leaf.dtype, jnp.floating)
            arrays[is_other].append(jnp.asarray(leaf))
            entries.append(_Place(is_other))
        else:
            entries.append(leaf)
    return Skeleton(structure, tuple(entries)), *arrays


def join(skeleton: Skeleton, differentiable: Differentiable, others: Others) -> Any:
    """The tree whose `split` this is."""
    iterators = iter(differentiable), iter(others)
    leaves = [next(iterators[entry.is_other]) if isinstance(entry, _Place) else entry for entry in skeleton.entries]
    return jax.tree.unflatten(skeleton.structure, leaves)


def join_gradients(skeleton: Skeleton, gradients: Differentiable) -> Any:
    """A tree with gradients in the place of its differentiable arrays, and zeros in that of everything else."""
    iterator = iter(gradients)

    def leaf(entry: Any) -> Any:
        if not isinstance(entry, _Place):
            return 0
        # An array, for in a `value` a number would be no leaf.
        return jnp.zeros((), jnp.int32) if entry.is_other else next(iterator)

    return jax.tree.unflatten(skeleton.structure, [leaf(entry) for entry in skeleton.entries])


def split_gradients(skeleton: Skeleton, tree: Any) -> Differentiable:
    """The gradients that `join_gradients` was given."""
    pairs = zip(jax.tree.leaves(tree), skeleton.entries, strict=True)
    return [leaf for leaf, entry in pairs if isinstance(entry, _Place) and not entry.is_other]


@dataclasses.dataclass(frozen=True)
class _Place:
    is_other: bool  # of an array whose type is no floating-point type
