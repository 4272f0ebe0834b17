"""Patches: changes of an activation at chosen heads, positions and units.

Heads, positions and units are integers, arrays of integers (which may be traced), or boolean masks; negative integers
count from the end, and None selects all. Positions may differ between examples: `[B, n]` integers. Units index the last
axis: hidden units of a feed-forward network, coordinates of the residual stream or of a head. The array of a patch is
broadcast to the whole activation, and only the selected part is used: for `[B, H, T, d]`, an array `[d]` is the same
for all heads, and `[H, 1, d]` has values for each head.

Patches are PyTrees: `jax.vmap` over `zero(heads=jnp.arange(8))` runs a pass for each head.
"""

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Bool

from transformer_jax.argument_checks import as_array, broadcasts, known_values
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.names import AXES, ActivationSite
from transformer_jax.trees import pytree_class, static_field

# Integers, the same or one row per example, or a boolean mask; None selects all.
Indices: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | np.ndarray | Array | None
Function: TypeAlias = Callable[[Array], ArrayLike]


class Patch:
    """A change of an activation."""

    def apply(self, x: Array, site: ActivationSite) -> Array:
        """The changed activation."""
        raise NotImplementedError


# The change of an activation: a new value, a function of it, a patch, or a list of functions and patches.
Change: TypeAlias = ArrayLike | Function | Patch | Sequence[Function | Patch]


@pytree_class
class Applied(Patch):
    """A function of the activation."""

    function: Function = static_field()

    def apply(self, x: Array, site: ActivationSite) -> Array:
        return _fitting(self.function(x), x, site, is_whole=True).astype(x.dtype)


@pytree_class
class Filled(Patch):
    """Replace the selected part of an activation by an array, or add the array to it."""

    # "hide" sets logits to -∞
    how: Literal["zero", "hide", "replace", "add", "swap"] = static_field()
    array: object = None  # `apply` checks that it is an array
    heads: Indices = None
    positions: Indices = None
    units: Indices = None
    queries: Indices = None
    keys: Indices = None

    def apply(self, x: Array, site: ActivationSite) -> Array:
        if self.how == "hide" and (site.letters != "B H T S" or "logits" not in site.name):
            raise InputError(
                f"knock_out is for logits and weights of attention; {site.name} is [{site.letters}]"
            )
        number = {"zero": 0, "hide": -jnp.inf}.get(self.how)
        array = (
            _fitting(self.array, x, site, is_whole=self.how == "swap") if number is None else number
        )
        changed = (x + array if self.how == "add" else jnp.broadcast_to(array, x.shape)).astype(
            x.dtype
        )
        return jnp.where(_chosen(site, **{what: getattr(self, what) for what in AXES}), changed, x)


def zero(heads: Indices = None, positions: Indices = None, units: Indices = None) -> Patch:
    """Set chosen heads, positions and units to zero (zero ablation)."""
    return Filled("zero", None, heads, positions, units)


def mean(
    array: ArrayLike, heads: Indices = None, positions: Indices = None, units: Indices = None
) -> Patch:
    """Replace chosen heads, positions and units by an average (mean ablation); the same as `replace`.

    Args:
        array: the average over a data set, e.g. `captured[name].mean(0)`; it is broadcast to the activation.
        heads: which heads to replace; None for all.
        positions, units: which positions and units to replace; None for all.
    """
    return replace(array, heads, positions, units)


def replace(
    array: ArrayLike, heads: Indices = None, positions: Indices = None, units: Indices = None
) -> Patch:
    """Replace chosen heads, positions and units by an array, which is broadcast to the activation."""
    return Filled("replace", array, heads, positions, units)


def add(
    direction: ArrayLike, heads: Indices = None, positions: Indices = None, units: Indices = None
) -> Patch:
    """Add a direction, broadcast to the activation, at chosen heads, positions and units (steering)."""
    return Filled("add", direction, heads, positions, units)


def swap(
    array: ArrayLike, heads: Indices = None, positions: Indices = None, units: Indices = None
) -> Patch:
    """Take chosen heads, positions and units from the same activation for another input (activation patching).

    Args:
        array: the whole activation for the other input, as returned by `capture`, of the same shape.
        heads: which heads to take from it; None for all.
        positions, units: which positions and units to take from it; None for all.
    """
    return Filled("swap", array, heads, positions, units)


def knock_out(queries: Indices, keys: Indices, heads: Indices = None) -> Patch:
    """Remove the attention edges from each of these queries to each of these keys, like a mask.

    The softmax is over the remaining keys; a query without remaining keys gets zeros. The patch is for the activations
    `logits` and `weights` of an attention; for both it acts on the logits, before any other change of the weights.

    Args:
        queries: positions of the queries; None for all.
        keys: positions of the keys; None for all.
        heads: which heads to change; None for all.
    """
    return Filled("hide", None, heads, queries=queries, keys=keys)


def parts_of(change: Change) -> tuple[Patch, ...]:
    """Return the patches that a change consists of, in order."""
    if isinstance(change, Patch):
        return (change,)
    if callable(change):
        return (Applied(change),)
    parts = change if isinstance(change, list | tuple) else ()
    if parts and all(isinstance(part, Patch) or callable(part) for part in parts):
        return tuple(patch for part in parts for patch in parts_of(part))
    return (Filled("swap", change),)


def _chosen(site: ActivationSite, **places: Indices) -> Bool[Array, "..."]:
    """Boolean mask of what is selected along all axes, which are named as in `AXES`."""
    chosen = jnp.ones((), bool)
    for what, indices in places.items():
        if indices is not None:
            chosen &= _chosen_along(what, indices, site)
    return chosen


def _chosen_along(what: str, chosen: Indices, site: ActivationSite) -> Bool[Array, "..."]:
    """Boolean mask of what is selected along one axis of an activation; it broadcasts to the activation.

    Raises:
        InputError: the activation has no such axis, or an index is out of range.
    """
    axis = site.axis(what)
    if axis is None:
        raise InputError(
            f"{what} is {shortened(chosen)}; {site.name} is [{site.letters}] and has no {what}"
        )
    size, array = site.shape[axis], _as_indices(what, chosen)
    # positions count from the text's start
    first = site.first if site.letters.split()[axis] == "T" else None
    places = jnp.arange(size) if first is None else first + jnp.arange(size)
    of_examples = what == "positions" and array.ndim == 2 and site.letters.startswith("B ")
    if array.dtype == bool:
        if array.ndim != 1 or (first is None and len(array) != size):
            raise InputError(
                f"{what} of {site.name} has shape {array.shape}; a boolean mask must be ({size},)"
            )
        is_chosen = jnp.asarray(array).at[places].get(mode="fill", fill_value=False)
    else:
        if of_examples and len(array) != site.shape[0]:
            raise InputError(
                f"positions of {site.name} has {len(array)} rows; there are {site.shape[0]}"
                " examples"
            )
        _check_indices(
            what, array.ravel() if of_examples else array, size if first is None else None, site
        )
        indices = jnp.asarray(array).reshape(*array.shape[: array.ndim - 1], -1, 1)
        from_end = 0 if first is not None else size
        # [size] or [B size]
        is_chosen = (jnp.where(indices < 0, indices + from_end, indices) == places).any(-2)
    others = [
        number
        for number in range(len(site.shape))
        if number != axis and (number or not of_examples)
    ]
    return jnp.expand_dims(is_chosen, others)


def _as_indices(what: str, chosen: Indices) -> Array | np.ndarray:
    """Convert indices to an array; a list may hold traced integers, e.g. of a patch that is a compiled argument."""
    if not isinstance(chosen, list | tuple):
        return as_array(what, chosen)
    if any(isinstance(number, Array) for number in chosen):
        return jnp.stack(chosen)
    return as_array(what, chosen) if chosen else np.zeros(0, int)


def _check_indices(
    what: str, array: Array | np.ndarray, size: int | None, site: ActivationSite
) -> None:
    if not jnp.issubdtype(array.dtype, jnp.integer) or array.ndim > 1:
        raise InputError(
            f"{what} of {site.name} is {shortened(array)}; it must be integers or a boolean mask,"
            " with one axis"
        )
    known = known_values(array)
    lowest, end = (0, np.inf) if size is None else (-size, size)
    if known is not None and (outside := known[(known < lowest) | (known >= end)]).size:
        there = (
            f"there are {size}, 0 … {size - 1}"
            if size
            else "in cached decoding they count from the text's start"
        )
        raise InputError(f"{what} of {site.name} holds {outside.flat[0]}; {there}")


def _fitting(array: object, x: Array, site: ActivationSite, *, is_whole: bool) -> Array:
    """Convert the value given for an activation `x` to an array of its shape, or one that broadcasts to it."""
    try:
        given = jnp.asarray(as_array("patch", array))
    except InputError:
        raise InputError(
            f"the patch of {site.name} is {shortened(array)}; it must be an array, a function that "
            "returns one, or a patch"
        ) from None
    if site.first is not None:
        axis = site.letters.split().index("T") - x.ndim
        # current positions of a whole text
        if given.ndim >= -axis and given.shape[axis] > x.shape[axis]:
            given = jax.lax.dynamic_slice_in_dim(
                given, site.first, x.shape[axis], axis + given.ndim
            )
    if given.shape != x.shape if is_whole else not broadcasts(given.shape, x.shape):
        needed = f"{'be' if is_whole else 'broadcast to'} {x.shape}, [{site.letters}]"
        raise InputError(f"the patch of {site.name} has shape {given.shape}; it must {needed}")
    return given
