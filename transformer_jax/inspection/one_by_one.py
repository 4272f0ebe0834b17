"""A pass for each of many places in a model, with that place alone changed."""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from transformer_jax.errors import InputError
from transformer_jax.inspection.names import HEADS, POSITIONS, Activation
from transformer_jax.inspection.patches import Patch

AXES: Mapping[str, tuple[str, ...]] = {"heads": HEADS, "positions": POSITIONS}
AT_ONCE = 8  # passes that are vmapped; more of them need more memory

Chosen = dict[str, Bool[Array, "..."]]  # heads and positions of an activation


def one_by_one(
    found: Sequence[Activation],
    by: Sequence[str],
    change: Callable[[str, Chosen], Patch],
    run: Callable[[Mapping[str, Patch]], Array],
) -> dict[str, Array]:
    """Run a pass for each head, each position, or each pair of both, of each of some activations.

    One program does for all of them, `AT_ONCE` of which it runs at a time.

    Args:
        found: the activations.
        by: axes along which places are tried one by one; all of the other one is changed together.
        change: of the name of an activation, and of truth values that choose heads and positions, the patch.
        run: of a patch for each of the activations, of which all but one choose nothing, the result of the pass.

    Returns:
        By activation the results, whose leading axes are those of `by`, in its order.

    Raises:
        InputError: `by` holds something else, or one of its axes twice; or an activation has no such axis.
    """
    grids = [_grid(activation, by) for activation in found]
    num_places = [math.prod(grid) for grid in grids]
    starts = [sum(num_places[:number]) for number in range(len(found))]

    def of_place(place: Array) -> Array:
        patches = {}
        for activation, grid, start, number in zip(found, grids, starts, num_places, strict=True):
            is_here = (jnp.arange(start, start + number) == place).reshape(grid)
            patches[activation.name] = change(activation.name, _chosen(activation, by, is_here))
        return run(patches)

    results = jax.lax.map(of_place, jnp.arange(sum(num_places)), batch_size=min(AT_ONCE, sum(num_places)))
    return {
        activation.name: results[start : start + number].reshape(*grid, *results.shape[1:])
        for activation, grid, start, number in zip(found, grids, starts, num_places, strict=True)
    }


def _chosen(activation: Activation, by: Sequence[str], is_here: Bool[Array, "..."]) -> Chosen:
    """One head and one position where these are tried one by one, else all; nothing if it is not the place's turn."""
    chosen: Chosen = {}
    for axis, letters in AXES.items():
        size = activation.size(letters)
        if axis in by:
            chosen[axis] = is_here.any([number for number, other in enumerate(by) if other != axis])
        elif size is not None:
            chosen[axis] = jnp.full(size, is_here.any())
    return chosen


def _grid(activation: Activation, by: Sequence[str]) -> tuple[int, ...]:
    """How many places there are along each axis of `by`."""
    if isinstance(by, str) or len(set(by)) != len(by) or not set(by) <= set(AXES):
        raise InputError(f"by is {by!r}; it must hold {' or '.join(map(repr, AXES))}, or both")
    sizes = [activation.size(AXES[axis]) for axis in by]
    if None in sizes:
        axis = by[sizes.index(None)]
        raise InputError(f"by holds {axis!r}; {activation.name} is [{activation.letters}] without {axis}")
    return tuple(size for size in sizes if size is not None)
