"""A pass for each of many places in a model, with that place alone changed."""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected_call import HEADS, POSITIONS, Activation
from transformer_jax.inspection.patches import Patch

LETTERS: Mapping[str, tuple[str, ...]] = {"heads": HEADS, "positions": POSITIONS}
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
    _check(found, by)
    grids = [[activation.size(LETTERS[axis]) or 0 for axis in by] for activation in found]
    num_places = [math.prod(grid) for grid in grids]
    starts = [sum(num_places[:number]) for number in range(len(found))]

    def of_place(place: Array) -> Array:
        patches = {}
        for activation, grid, start, number in zip(found, grids, starts, num_places, strict=True):
            is_here = (place >= start) & (place < start + number)
            indices = jnp.unravel_index(jnp.clip(place - start, 0, number - 1), grid) if grid else ()
            chosen = _chosen(activation, dict(zip(by, indices, strict=True)), is_here)
            patches[activation.name] = change(activation.name, chosen)
        return run(patches)

    results = jax.lax.map(of_place, jnp.arange(sum(num_places)), batch_size=min(AT_ONCE, sum(num_places)))
    return {
        activation.name: results[start : start + number].reshape(*grid, *results.shape[1:])
        for activation, grid, start, number in zip(found, grids, starts, num_places, strict=True)
    }


def _chosen(activation: Activation, indices: Mapping[str, Array], is_here: Array) -> Chosen:
    """One head and one position where these are tried one by one, else all; nothing if it is not the place's turn."""
    chosen: Chosen = {}
    for axis, letters in LETTERS.items():
        size = activation.size(letters)
        if size is not None:
            chosen[axis] = is_here & (jnp.arange(size) == indices[axis] if axis in indices else jnp.ones(size, bool))
    return chosen


def _check(found: Sequence[Activation], by: Sequence[str]) -> None:
    if isinstance(by, str) or len(set(by)) != len(by) or not set(by) <= set(LETTERS):
        raise InputError(f"by is {by!r}; it must hold {' or '.join(map(repr, LETTERS))}, or both")
    for activation in found:
        for axis in by:
            if activation.size(LETTERS[axis]) is None:
                raise InputError(f"by holds {axis!r}; {activation.name} is {list(activation.letters)} without {axis}")
