"""Changes of an activation: for chosen heads and positions, one after another.

Heads and positions are numbers, arrays of them (which may be traced), or truth values, one for each; negative numbers
count from the end, None stands for all. An array that is given is broadcast to the whole activation, of which the
chosen heads and positions are taken: `[d]` is the same for all heads of `[B, H, T, d]`, `[H, 1, d]` one for each.

Patches are pytrees: `jax.vmap` over `zero(heads=jnp.arange(8))` runs a pass for each head.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool

from transformer_jax.errors import InputError
from transformer_jax.nn.checks import as_array, broadcasts, known_values
from transformer_jax.nn.values import static, value

Indices: TypeAlias = int | Sequence[int] | np.ndarray | Array  # or truth values


class Site(NamedTuple):
    """An activation that is patched."""

    name: str
    letters: str  # of its axes: "B H T d"

    def axis(self, *letters: str) -> int | None:
        """The first axis with one of these letters."""
        axes = [number for number, letter in enumerate(self.letters.split()) if letter in letters]
        return axes[0] if axes else None


class Patch:
    """A change of an activation, which `then` continues with another."""

    def apply(self, x: Array, site: Site) -> Array:
        """The changed activation."""
        raise NotImplementedError

    def then(self, other: "Change") -> "Patch":
        """This patch, and then another, or a function from array to array."""
        return Composed((*parts_of(self), *parts_of(other)))


Function: TypeAlias = Callable[[Array], ArrayLike]
# The change of an activation: a new value, a function of it, a patch, or a list of functions and patches.
Change: TypeAlias = Any


@value
class Whole(Patch):
    """Another value for the whole activation, of its shape."""

    array: Any

    def apply(self, x: Array, site: Site) -> Array:
        return _of_its_shape(self.array, x, site)


@value
class Applied(Patch):
    """A function of the activation."""

    function: Function = static()

    def apply(self, x: Array, site: Site) -> Array:
        return _of_its_shape(self.function(x), x, site)


@value
class Composed(Patch):
    """Patches one after another."""

    parts: tuple[Patch, ...]

    def apply(self, x: Array, site: Site) -> Array:
        for part in self.parts:
            x = part.apply(x, site)
        return x


@value
class Chosen(Patch):
    """Base class: a change of chosen heads and positions."""

    heads: Any = None
    positions: Any = None

    def changed(self, x: Array, site: Site) -> Array:
        """What the chosen heads and positions get, for all of them."""
        raise NotImplementedError

    def apply(self, x: Array, site: Site) -> Array:
        changed = self.changed(x, site).astype(x.dtype)
        for what, letters, chosen in (("heads", ("H", "Hkv"), self.heads), ("positions", ("T", "S"), self.positions)):
            if chosen is not None:
                changed = jnp.where(_along(what, letters, chosen, x, site), changed, x)
        return changed


@value
class Zero(Chosen):
    """Zeros."""

    def changed(self, x: Array, site: Site) -> Array:
        return jnp.zeros_like(x)


@value
class Replace(Chosen):
    """Another array, broadcast to the activation."""

    array: Any = None

    def changed(self, x: Array, site: Site) -> Array:
        return jnp.broadcast_to(_fitting(self.array, x, site), x.shape)


@value
class Swap(Chosen):
    """Another array, of the activation's shape."""

    array: Any = None

    def changed(self, x: Array, site: Site) -> Array:
        return _of_its_shape(self.array, x, site)


@value
class Add(Chosen):
    """A direction added."""

    direction: Any = None

    def changed(self, x: Array, site: Site) -> Array:
        return x + _fitting(self.direction, x, site)


@value
class KnockOut(Patch):
    """Edges of attention removed: their logits are -∞."""

    queries: Any
    keys: Any
    heads: Any = None

    def apply(self, x: Array, site: Site) -> Array:
        chosen = jnp.ones((), bool)
        for what, letter, indices in (
            ("queries", "T", self.queries),
            ("keys", "S", self.keys),
            ("heads", "H", self.heads),
        ):
            if indices is not None:
                chosen = chosen & _along(what, (letter,), indices, x, site)
        return jnp.where(chosen, -jnp.inf, x)


def zero(heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """Zeros in the place of chosen heads and positions (zero ablation)."""
    return Zero(_indices(heads), _indices(positions))


def mean(array: ArrayLike, heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """An average in the place of chosen heads and positions (mean ablation): `replace`, said in the field's words.

    Args:
        array: the average over a data set, say `captured[name].mean(0)`; it is broadcast to the activation.
        heads: which; None for all.
        positions: likewise.
    """
    return replace(array, heads, positions)


def replace(array: ArrayLike, heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """Values of an array, broadcast to the activation, in the place of those of chosen heads and positions."""
    return Replace(_indices(heads), _indices(positions), array)


def add(direction: ArrayLike, heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """A direction, broadcast to the activation, added at chosen heads and positions (steering)."""
    return Add(_indices(heads), _indices(positions), direction)


def swap(array: ArrayLike, heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """Chosen heads and positions of the same activation for another input (activation patching).

    Args:
        array: the whole activation as `capture` gives it for the other input, of the same shape.
        heads: which are taken from it; None for all.
        positions: likewise.
    """
    return Swap(_indices(heads), _indices(positions), array)


def knock_out(queries: Indices | None, keys: Indices | None, heads: Indices | None = None) -> Patch:
    """Remove the edges of attention from each of these queries to each of these keys, as a mask would.

    The softmax is over the keys that remain. A query without any gets zeros. It is for the activations `logits` and
    `weights` of an attention; with either name it acts on the logits.

    Args:
        queries: positions of the queries; None for all.
        keys: positions of the keys; None for all.
        heads: which; None for all.
    """
    return KnockOut(_indices(queries), _indices(keys), _indices(heads))


def parts_of(change: Change) -> tuple[Patch, ...]:
    """The patches that a change is made of, in their order."""
    if isinstance(change, Composed):
        return change.parts
    if isinstance(change, Patch):
        return (change,)
    if (
        isinstance(change, list | tuple)
        and change
        and all(isinstance(part, Patch) or callable(part) for part in change)
    ):
        return tuple(patch for part in change for patch in parts_of(part))
    return (Applied(change),) if callable(change) else (Whole(change),)


def _indices(chosen: Any) -> Any:
    if not isinstance(chosen, list | tuple | range):
        return chosen
    return np.asarray(chosen) if len(chosen) else np.zeros(0, int)


def _along(what: str, letters: tuple[str, ...], chosen: Any, x: Array, site: Site) -> Bool[Array, "..."]:
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


def _of_its_shape(array: Any, x: Array, site: Site) -> Array:
    value = _as_value(array, site)
    if value.shape != x.shape:
        raise InputError(f"the patch of {site.name} has shape {value.shape}; it must be {x.shape}, [{site.letters}]")
    return value.astype(x.dtype)


def _fitting(array: Any, x: Array, site: Site) -> Array:
    value = _as_value(array, site)
    if not broadcasts(value.shape, x.shape):
        raise InputError(
            f"the patch of {site.name} has shape {value.shape}; it must broadcast to {x.shape}, [{site.letters}]"
        )
    return value
