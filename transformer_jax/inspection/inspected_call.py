"""Any computation that calls a model, inspected: once, or once for each of many places that are changed."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from transformer_jax.errors import InputError
from transformer_jax.inspection.inspected_pass import InspectedPass
from transformer_jax.inspection.names import HEADS, POSITIONS, Activation, matches
from transformer_jax.inspection.patches import Change, Patch
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables

Result = TypeVar("Result")
Metric: TypeAlias = Callable[[Any], Array]  # of a model's output
OUTPUTS = "head_outputs"  # end of the name of the activation that holds each head's output
# By kind (`encoder`, `decoder`, `cross`) one number, or more, for each layer and head.
HeadTable = dict[str, Float[Array, "L H ..."]]
AXES: Mapping[str, tuple[str, ...]] = {"heads": HEADS, "positions": POSITIONS}
AT_ONCE = 8  # passes that are vmapped; more of them need more memory
Chosen = dict[str, Bool[Array, "..."]]  # heads and positions of an activation


def inspected(
    call: Callable[[], Result], names: Sequence[str] = (), patches: Mapping[str, Change] | None = None
) -> tuple[Result, dict[str, Array]]:
    """Run a computation that applies a model once, as a loss function does, with activations captured and patched.

    Returns:
        Its result, and the activations by name, in the order of the pass.

    Raises:
        InputError: as `transformer_jax.patch`.
    """
    of_pass = InspectedPass(tuple(names), patches or {})
    with nn.intercept_methods(of_pass.intercept):
        result = call()
    of_pass.check()
    return result, of_pass.captured


def model_call(
    model: nn.Module, variables: Variables, inputs: Sequence[object], kwargs: Mapping[str, Any]
) -> Callable[[], Any]:
    """One pass of a model as a function without arguments, for `inspected`.

    Raises:
        InputError: the variables lack "params".
    """
    if isinstance(variables, Mapping) and variables and "params" not in variables:
        names = ", ".join(list(variables)[:3])
        raise InputError(f'variables has {names}; it must be {{"params": …}}, as {{"params": run.params}}')
    return lambda: model.apply(unstack_layers(variables), *inputs, **kwargs)


def activations(call: Callable[[], object], patterns: Sequence[str] = ("*",)) -> list[Activation]:
    """All activations of a computation whose names fit one of some patterns, in their order; nothing is computed.

    Raises:
        InputError: a pattern fits none.
    """
    of_pass = InspectedPass(patterns, {}, keeps_values=False)
    with nn.intercept_methods(of_pass.intercept):
        jax.eval_shape(lambda: call())  # a function of its own: JAX would not trace `call` a second time
    of_pass.check()
    return [each for each in of_pass.activations if any(matches(each.name, pattern) for pattern in patterns)]


class Attention(NamedTuple):
    """An attention of a model."""

    head_outputs: str  # name of its activation `[B, H, T, d]`, `decoder.layers.1.cross_attention.head_outputs`
    stack: str  # `decoder`; empty in a stack without a model around it
    kind: str  # `encoder`, `decoder`, `cross`; `self` in a stack without a model around it
    num_heads: int  # H

    def named(self, name: str) -> str:
        """Name of another activation of this attention: `weights`, `queries`."""
        return f"{self.head_outputs.removesuffix(OUTPUTS)}{name}"


def attentions(call: Callable[[], object]) -> list[Attention]:
    """Every attention that a pass runs, in its order.

    Args:
        call: the pass, as `model_call` makes it.

    Raises:
        InputError: the pass has no attention.
    """
    found = []
    for activation in activations(call):
        path, _, name = activation.name.rpartition(".")
        if name == OUTPUTS:
            stack, kind = _stack_and_kind(path)
            found.append(Attention(activation.name, stack, kind, activation.size(HEADS) or 0))
    if not found:
        raise InputError("the model has no attention of this package to look into")
    return found


def _stack_and_kind(path: str) -> tuple[str, str]:
    block, _, module = path.rpartition(".")
    stack = re.sub(r"\.?layers\.\d+$", "", block)
    kinds = {"cross_attention": "cross", "attention": stack, "": stack}
    return stack, kinds.get(module, f"{stack}.{module}".strip(".")) or "self"


def by_kind(found: Sequence[Attention], rows: Mapping[str, Array]) -> HeadTable:
    """Rows `[H, ...]`, by the name of the attention's `head_outputs`, as tables `[L, H, ...]` by kind."""
    kinds = dict.fromkeys(attention.kind for attention in found)
    return {kind: jnp.stack([rows[each.head_outputs] for each in found if each.kind == kind]) for kind in kinds}


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
    grids = [grid_of(activation, by) for activation in found]
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


def grid_of(activation: Activation, by: Sequence[str]) -> tuple[int, ...]:
    """How many places there are along each axis of `by`."""
    if isinstance(by, str) or len(set(by)) != len(by) or not set(by) <= set(AXES):
        raise InputError(f"by is {by!r}; it must hold {' or '.join(map(repr, AXES))}, or both")
    sizes = [activation.size(AXES[axis]) for axis in by]
    if None in sizes:
        axis = by[sizes.index(None)]
        raise InputError(f"by holds {axis!r}; {activation.name} is [{activation.letters}] without {axis}")
    return tuple(size for size in sizes if size is not None)
