"""Changes of an activation: for chosen heads and positions, one after another.

Heads and positions are numbers, arrays of them (which may be traced), or truth values, one for each; negative numbers
count from the end, None stands for all. An array that is given is broadcast to the whole activation, of which the
chosen heads and positions are taken: `[d]` is the same for all heads of `[B, H, T, d]`, `[H, 1, d]` one for each.

Patches are pytrees: `jax.vmap` over `zero(heads=jnp.arange(8))` runs a pass for each head.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.inspection.patch_sites import Indices, Site, as_indices, chosen_along, of_its_shape, that_fits
from transformer_jax.trees import pytree_class, static_field


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


@pytree_class
class Whole(Patch):
    """Another value for the whole activation, of its shape."""

    array: Any

    def apply(self, x: Array, site: Site) -> Array:
        return of_its_shape(self.array, x, site)


@pytree_class
class Applied(Patch):
    """A function of the activation."""

    function: Function = static_field()

    def apply(self, x: Array, site: Site) -> Array:
        return of_its_shape(self.function(x), x, site)


@pytree_class
class Composed(Patch):
    """Patches one after another."""

    parts: tuple[Patch, ...]

    def apply(self, x: Array, site: Site) -> Array:
        for part in self.parts:
            x = part.apply(x, site)
        return x


@pytree_class
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
                changed = jnp.where(chosen_along(what, letters, chosen, x, site), changed, x)
        return changed


@pytree_class
class Zero(Chosen):
    """Zeros."""

    def changed(self, x: Array, site: Site) -> Array:
        return jnp.zeros_like(x)


@pytree_class
class Replace(Chosen):
    """Another array, broadcast to the activation."""

    array: Any = None

    def changed(self, x: Array, site: Site) -> Array:
        return jnp.broadcast_to(that_fits(self.array, x, site), x.shape)


@pytree_class
class Swap(Chosen):
    """Another array, of the activation's shape."""

    array: Any = None

    def changed(self, x: Array, site: Site) -> Array:
        return of_its_shape(self.array, x, site)


@pytree_class
class Add(Chosen):
    """A direction added."""

    direction: Any = None

    def changed(self, x: Array, site: Site) -> Array:
        return x + that_fits(self.direction, x, site)


@pytree_class
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
                chosen = chosen & chosen_along(what, (letter,), indices, x, site)
        return jnp.where(chosen, -jnp.inf, x)


def zero(heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """Zeros in the place of chosen heads and positions (zero ablation)."""
    return Zero(as_indices(heads), as_indices(positions))


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
    return Replace(as_indices(heads), as_indices(positions), array)


def add(direction: ArrayLike, heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """A direction, broadcast to the activation, added at chosen heads and positions (steering)."""
    return Add(as_indices(heads), as_indices(positions), direction)


def swap(array: ArrayLike, heads: Indices | None = None, positions: Indices | None = None) -> Patch:
    """Chosen heads and positions of the same activation for another input (activation patching).

    Args:
        array: the whole activation as `capture` gives it for the other input, of the same shape.
        heads: which are taken from it; None for all.
        positions: likewise.
    """
    return Swap(as_indices(heads), as_indices(positions), array)


def knock_out(queries: Indices | None, keys: Indices | None, heads: Indices | None = None) -> Patch:
    """Remove the edges of attention from each of these queries to each of these keys, as a mask would.

    The softmax is over the keys that remain. A query without any gets zeros. It is for the activations `logits` and
    `weights` of an attention; with either name it acts on the logits.

    Args:
        queries: positions of the queries; None for all.
        keys: positions of the keys; None for all.
        heads: which; None for all.
    """
    return KnockOut(as_indices(queries), as_indices(keys), as_indices(heads))


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
