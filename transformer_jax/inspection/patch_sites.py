"""An activation that is patched, and what a patch was given for it: heads and positions, arrays."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool

from transformer_jax.array_checks import as_array, broadcasts, known_values
from transformer_jax.errors import InputError

Indices: TypeAlias = int | Sequence[int] | np.ndarray | Array  # or truth values


class Site(NamedTuple):
    """An activation that is patched."""

    name: str
    letters: str  # of its axes: "B H T d"

    def axis(self, *letters: str) -> int | None:
        """The first axis with one of these letters."""
        axes = [number for number, letter in enumerate(self.letters.split()) if letter in letters]
        return axes[0] if axes else None


def as_indices(chosen: Any) -> Any:
    """Chosen heads or positions as an array where they are a list; else as they are."""
    if not isinstance(chosen, list | tuple | range):
        return chosen
    return np.asarray(chosen) if len(chosen) else np.zeros(0, int)


def chosen_along(what: str, letters: tuple[str, ...], chosen: Any, x: Array, site: Site) -> Bool[Array, "..."]:
    """Truth values along one axis of an activation, which broadcast to it: those that are chosen.

    Raises:
        InputError: the activation has no such axis, or one that is chosen is not there.
    """
    axis = site.axis(*letters)
    if axis is None:
        raise InputError(f"{what} is {chosen!r}; {site.name} is [{site.letters}] and has no {what}")
    size = x.shape[axis]
    array = as_array(what, chosen)
    if array.dtype == bool:
        if array.shape != (size,):
            raise InputError(f"{what} of {site.name} has shape {array.shape}; truth values must be ({size},)")
        is_chosen = jnp.asarray(array)
    else:
        _check_indices(what, array, size, site)
        indices = jnp.asarray(array).reshape(-1, 1)
        is_chosen = (jnp.where(indices < 0, indices + size, indices) == jnp.arange(size)).any(0)
    return is_chosen.reshape(tuple(size if number == axis else 1 for number in range(x.ndim)))


def _check_indices(what: str, array: Array | np.ndarray, size: int, site: Site) -> None:
    if not jnp.issubdtype(array.dtype, jnp.integer) or array.ndim > 1:
        raise InputError(f"{what} of {site.name} is {array!r}; it must be whole numbers or truth values, in one row")
    known = known_values(array)
    if known is not None and (outside := known[(known < -size) | (known >= size)]).size:
        raise InputError(f"{what} of {site.name} holds {outside.flat[0]}; there are {size}, 0 … {size - 1}")


def _as_value(value: Any, site: Site) -> Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise InputError(
            f"the patch of {site.name} is {value!r}; it must be an array, a function that returns one, or a patch"
        ) from None


def of_its_shape(array: Any, x: Array, site: Site) -> Array:
    """An array that must have the shape of the activation `x`, in its type."""
    value = _as_value(array, site)
    if value.shape != x.shape:
        raise InputError(f"the patch of {site.name} has shape {value.shape}; it must be {x.shape}, [{site.letters}]")
    return value.astype(x.dtype)


def that_fits(array: Any, x: Array, site: Site) -> Array:
    """An array that must broadcast to the activation `x`."""
    value = _as_value(array, site)
    if not broadcasts(value.shape, x.shape):
        raise InputError(
            f"the patch of {site.name} has shape {value.shape}; it must broadcast to {x.shape}, [{site.letters}]"
        )
    return value
