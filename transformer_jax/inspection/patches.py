"""Patches: changes of an activation at chosen heads, positions and units.

Heads, positions and units are integers, arrays of integers (which may be traced), or boolean masks; negative integers
count from the end, and None selects all. Positions may differ between examples: `[B, n]` integers. Units index the last
axis: hidden units of a feed-forward network, coordinates of the residual stream or of a head. The array of a patch is
broadcast to the whole activation, and only the selected part is used: for `[B, H, T, d]`, an array `[d]` is the same
for all heads, and `[H, 1, d]` has values for each head.

Patches are PyTrees: `jax.vmap` over `zero(heads=jnp.arange(8))` runs a pass for each head.
"""

from collections.abc import Callable, Mapping, Sequence
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
Changes: TypeAlias = Mapping[str, Change]  # by name or pattern


@pytree_class
class Applied(Patch):
    """A function of the activation."""

    function: Function = static_field()

    def apply(self, x: Array, site: ActivationSite) -> Array:
        return _fitting(self.function(x), x, site, is_whole=True).astype(x.dtype)


@pytree_class
class Filled(Patch):
    """Replace the selected part of an activation by an array, or add the array to it."""

    how: Literal["hide", "replace", "add", "swap"] = static_field()
    array: object  # `apply` checks that it is an array
    heads: Indices = None
    positions: Indices = None
    units: Indices = None
    queries: Indices = None
    keys: Indices = None

    def apply(self, x: Array, site: ActivationSite) -> Array:
        """The activation, changed where all of heads, positions and so on select it."""
        if self.how == "hide" and (site.letters != "B H T S" or "logits" not in site.name):
            raise InputError(
                f"knock_out is for logits and weights of attention; {site.name} is [{site.letters}]"
            )
        array = _fitting(self.array, x, site, is_whole=self.how == "swap")
        changed = x + array if self.how == "add" else jnp.broadcast_to(array, x.shape)
        changed = changed.astype(x.dtype)
        for what in AXES:
            indices = getattr(self, what)
            if indices is not None:
                changed = jnp.where(_is_chosen(what, indices, site), changed, x)
        return changed


def zero(heads: Indices = None, positions: Indices = None, units: Indices = None) -> Patch:
    """Set chosen heads, positions and units to zero (zero ablation)."""
    return replace(0.0, heads, positions, units)


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
    return Filled("hide", -np.inf, heads, queries=queries, keys=keys)


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


def _is_chosen(what: str, indices: Indices, site: ActivationSite) -> Bool[Array, "..."]:
    """Boolean mask of what is selected along one axis of an activation; it broadcasts to the activation.

    Raises:
        InputError: the activation has no such axis, or an index is out of range.
    """
    axis = site.axis(what)
    if axis is None:
        raise InputError(
            f"{what} is {shortened(indices)}; {site.name} is [{site.letters}] and has no {what}"
        )
    array = _as_indices(what, indices)
    size: int | None = site.shape[axis]
    places = jnp.arange(size)
    shape = [1] * len(site.shape)  # of the mask
    shape[axis] = len(places)
    if site.first is not None and site.letters.split()[axis] == "T":
        # in cached decoding, positions count from the start of a text whose length is unknown
        places += site.first
        size = None
    if array.dtype == bool:
        if array.ndim != 1 or size not in (None, len(array)):
            raise InputError(
                f"{what} of {site.name} has shape {array.shape}; a boolean mask must be ({size},)"
            )
        is_chosen = jnp.asarray(array).at[places].get(mode="fill", fill_value=False)
        return is_chosen.reshape(shape)
    _check_integers(what, array, size, site)
    if array.ndim == 2:  # a row for each example
        shape[0] = len(array)
    numbers = jnp.atleast_1d(array)[..., None]  # [n 1] or [B n 1]
    if size is not None:
        numbers = jnp.where(numbers < 0, numbers + size, numbers)
    return (numbers == places).any(-2).reshape(shape)


def _as_indices(what: str, chosen: Indices) -> Array | np.ndarray:
    """Convert indices to an array; a list may hold traced integers, e.g. of a patch that is a compiled argument."""
    if not isinstance(chosen, list | tuple):
        return as_array(what, chosen)
    if any(isinstance(number, Array) for number in chosen):
        return jnp.stack(chosen)
    return as_array(what, chosen) if chosen else np.zeros(0, int)


def _check_integers(
    what: str, array: Array | np.ndarray, size: int | None, site: ActivationSite
) -> None:
    """Raise an `InputError` unless these are indices of an axis of this size; None if it is unknown."""
    has_rows = what == "positions" and array.ndim == 2 and site.letters.startswith("B ")
    if not jnp.issubdtype(array.dtype, jnp.integer) or (array.ndim > 1 and not has_rows):
        raise InputError(
            f"{what} of {site.name} is {shortened(array)}; it must be integers or a boolean mask,"
            " with one axis"
        )
    if has_rows and len(array) != site.shape[0]:
        raise InputError(
            f"positions of {site.name} has {len(array)} rows; there are {site.shape[0]} examples"
        )
    known_indices = known_values(array)
    if known_indices is None:
        return
    first = 0
    end = np.inf
    allowed = "in cached decoding they count from the text's start"
    if size is not None:
        first = -size
        end = size
        allowed = f"there are {size}, 0 … {size - 1}"
    outside = known_indices[(known_indices < first) | (known_indices >= end)]
    if outside.size:
        raise InputError(f"{what} of {site.name} holds {outside[0]}; {allowed}")


def _fitting(array: object, x: Array, site: ActivationSite, *, is_whole: bool) -> Array:
    """Convert the value given for an activation `x` to an array of its shape, or one that broadcasts to it."""
    try:
        value = jnp.asarray(as_array("patch", array))
    except InputError:
        raise InputError(
            f"the patch of {site.name} is {shortened(array)}; it must be an array, a function that "
            "returns one, or a patch"
        ) from None
    if site.first is not None:
        # An array for all positions of a text is cut to the current ones; it may lack leading axes.
        axis = site.letters.split().index("T") - x.ndim
        size = x.shape[axis]
        if value.ndim >= -axis and value.shape[axis] > size:
            value = jax.lax.dynamic_slice_in_dim(value, site.first, size, value.ndim + axis)
    fits = value.shape == x.shape if is_whole else broadcasts(value.shape, x.shape)
    if not fits:
        relation = "be" if is_whole else "broadcast to"
        raise InputError(
            f"the patch of {site.name} has shape {value.shape}; it must {relation} {x.shape},"
            f" [{site.letters}]"
        )
    return value
