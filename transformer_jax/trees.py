"""Names for the pytrees that modules hand to each other."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
from jax.typing import ArrayLike
from jaxtyping import PyTree

Params: TypeAlias = Mapping[str, Any]  # nested dictionaries of arrays, by module and parameter name
Variables: TypeAlias = Mapping[str, Params]  # {"params": ...}, the first argument of a Flax model's `apply`
Inputs: TypeAlias = PyTree[ArrayLike]  # of a model: pytree of arrays [B, ...], its structure is the task's
Targets: TypeAlias = PyTree[ArrayLike]  # of a loss, likewise
Arrays: TypeAlias = PyTree[ArrayLike]  # any pytree of arrays
Shapes: TypeAlias = PyTree[jax.ShapeDtypeStruct]  # any pytree of the arrays' shapes and types
