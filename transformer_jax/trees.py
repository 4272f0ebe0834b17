"""Names for the pytrees that modules hand to each other, and their type."""

from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import PyTree

Tree = TypeVar("Tree")

# `params` is always the inner tree; `variables` is what a Flax model's `init` returns and its `apply` takes.
Params: TypeAlias = Mapping[str, Any]  # nested dictionaries of arrays, by module and parameter name
Variables: TypeAlias = Mapping[str, Params]  # {"params": params}
Inputs: TypeAlias = PyTree[ArrayLike]  # of a model: pytree of arrays [B, ...], its structure is the task's
Targets: TypeAlias = PyTree[ArrayLike]  # of a loss, likewise
Arrays: TypeAlias = PyTree[ArrayLike]  # any pytree of arrays
Shapes: TypeAlias = PyTree[jax.ShapeDtypeStruct]  # any pytree of the arrays' shapes and types


def with_floats(tree: Tree, dtype: str) -> Tree:
    """The tree with its floating-point arrays in this type; others, and what is no array, stay as they are."""

    def convert(leaf: Any) -> Any:
        is_float = hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(leaf, dtype) if is_float else leaf

    converted: Tree = jax.tree.map(convert, tree)
    return converted
