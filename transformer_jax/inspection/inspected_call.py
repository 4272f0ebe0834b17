"""Forward pass with capture and patches, run once or once per site."""

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from transformer_jax.argument_checks import as_array
from transformer_jax.errors import InputError, shortened
from transformer_jax.inspection.inspected_pass import InspectedPass
from transformer_jax.inspection.names import ActivationSite, matches
from transformer_jax.inspection.patches import Change
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.trees import Variables

Result = TypeVar("Result")
Metric: TypeAlias = Callable[[Any], Array]  # function of a model's output
OUTPUTS = "head_outputs"  # end of the name of the activation that holds each head's output
# By kind (`encoder`, `decoder`, `cross`): one or more numbers for each layer and head.
HeadTable = dict[str, Float[Array, "L H ..."]]
PLACES = ("heads", "positions")  # axes along which places can be changed one at a time
AT_ONCE = 8  # passes that are vmapped together; more need more memory
Captured = dict[str, Array]  # by name, in the order of the pass
Chosen = dict[str, Bool[Array, "..."]]  # boolean masks of the heads and positions of an activation


class Computation:
    """A computation that applies a model once, such as a loss function, run with capture and patches.

    Args:
        call: runs the computation and returns its result.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call

    @classmethod
    def of(
        cls,
        model: nn.Module,
        variables: Variables,
        inputs: Sequence[object],
        kwargs: Mapping[str, Any],
    ) -> "Computation":
        """Wrap one forward pass of a model.

        Raises:
            InputError: the variables lack "params", or an input is text.
        """
        for given in inputs:
            if isinstance(
                given[0] if isinstance(given, list | tuple) and given else given, str | bytes
            ):
                raise InputError(
                    f"the input is {shortened(given)}; a model takes arrays. Encode the text:"
                    " np.array([tokenizer.encode(text).ids]), or call"
                    " load_transformers(directory).capture(text, names)"
                )
        if isinstance(variables, Mapping) and variables and "params" not in variables:
            names = ", ".join(list(variables)[:3])
            raise InputError(
                f'variables has {names}; it must be {{"params": …}}, such as {{"params":'
                " run.params}"
            )
        inputs = [
            as_array("input", given) if isinstance(given, np.ndarray) else given for given in inputs
        ]
        return cls(lambda: model.apply(unstack_layers(variables), *inputs, **kwargs))

    def run(
        self, names: Sequence[str] = (), patches: Mapping[str, Change] | None = None
    ) -> tuple[Any, Captured]:
        """Run the computation with activations captured and patched.

        Returns:
            The result, and the activations by name, in the order of the pass.

        Raises:
            InputError: as in `transformer_jax.patch`.
        """
        of_pass = InspectedPass(tuple(names), patches or {})
        with nn.intercept_methods(of_pass.intercept):
            result = self._call()
        of_pass.check()
        return result, of_pass.captured

    def sites(self, patterns: Sequence[str] = ("*",)) -> list[ActivationSite]:
        """Return all activations whose names match one of the patterns, in order; nothing is computed.

        Raises:
            InputError: a pattern matches no activation.
        """
        of_pass = InspectedPass(patterns, {}, keeps_values=False)
        with nn.intercept_methods(of_pass.intercept):
            # a new function, because JAX caches the trace of a known one
            jax.eval_shape(lambda: self._call())
        of_pass.check()
        return [
            each
            for each in of_pass.activations
            if any(matches(each.name, pattern) for pattern in patterns)
        ]


class Attention(NamedTuple):
    """An attention of a model."""

    # name of its activation `[B, H, T, d]`, `decoder.layers.1.cross_attention.head_outputs`
    head_outputs: str
    stack: str  # `decoder`; empty in a stack without a model around it
    kind: str  # `encoder`, `decoder`, `cross`; `self` in a stack without a model around it
    num_heads: int  # H

    def named(self, name: str) -> str:
        """Name of another activation of this attention: `weights`, `queries`."""
        return f"{self.head_outputs.removesuffix(OUTPUTS)}{name}"


def attentions(sites: Sequence[ActivationSite]) -> list[Attention]:
    """Return every attention of a pass, in order.

    Args:
        sites: all activations of the pass.

    Raises:
        InputError: the pass has no attention.
    """
    found = [_attention(each) for each in sites if each.name.endswith(OUTPUTS)]
    if not found:
        raise InputError("the model has no attention of this package; there is nothing to inspect")
    return found


def _attention(outputs: ActivationSite) -> Attention:
    block, _, module = outputs.name.removesuffix(OUTPUTS).rstrip(".").rpartition(".")
    stack = re.sub(r"\.?layers\.\d+$", "", block)
    kinds = {"cross_attention": "cross", "attention": stack, "": stack}
    kind = kinds.get(module, f"{stack}.{module}".strip(".")) or "self"
    return Attention(outputs.name, stack, kind, outputs.size("heads") or 0)


def check_axes(found: Sequence[ActivationSite], by: Sequence[str]) -> None:
    """Raise an `InputError` if `by` holds anything but `PLACES`, or an activation has no such axis."""
    if isinstance(by, str) or len(set(by)) != len(by) or not set(by) <= set(PLACES):
        raise InputError(f"by is {by!r}; it must hold {' or '.join(map(repr, PLACES))}, or both")
    for each, axis in itertools.product(found, by):
        if each.size(axis) is None:
            raise InputError(
                f"by holds {axis!r}; {each.name} is [{each.letters}] and has no {axis}"
            )


def map_over_sites(
    found: Sequence[ActivationSite],
    by: Sequence[str],
    change: Callable[[str, Chosen], Change],
    run: Callable[[Mapping[str, Any]], Result],
) -> dict[str, Result]:
    """Run a pass for each head, each position, or each pair of head and position, of each given activation.

    All passes share one program, which runs `AT_ONCE` of them at a time.

    Args:
        found: the activations.
        by: axes along which an activation is changed one place at a time, if it has them; other axes are changed whole.
        change: function from an activation's name and boolean masks of its heads and positions to a patch.
        run: function from one patch per activation, all but one of which select nothing, to the result of the pass.

    Returns:
        The results by activation; their leading axes are those of `by`, in the same order.
    """
    grids = [tuple(size for axis in by if (size := each.size(axis)) is not None) for each in found]
    places = [
        (number, *place, 0, 0)[:3]
        for number, grid in enumerate(grids)
        for place in np.ndindex(*grid)
    ]
    starts = [0, *np.cumsum([math.prod(grid) for grid in grids]).tolist()]

    def of_place(row: Int[Array, " 3"]) -> Result:
        turns = jnp.arange(len(found)) == row[0]
        chosen = [_chosen(each, by, row[1:], turn) for each, turn in zip(found, turns, strict=True)]
        return run(
            {each.name: change(each.name, of_it) for each, of_it in zip(found, chosen, strict=True)}
        )

    results = jax.lax.map(of_place, np.array(places), batch_size=min(AT_ONCE, len(places)))
    return {
        each.name: jax.tree.map(
            lambda rows, s=slice(*ends), g=grid: rows[s].reshape(*g, *rows.shape[1:]), results
        )
        for each, grid, ends in zip(found, grids, itertools.pairwise(starts), strict=True)
    }


def _chosen(
    site: ActivationSite, by: Sequence[str], place: Int[Array, "2"], is_selected: Bool[Array, ""]
) -> Chosen:
    """Masks of one place along each axis of `by`, and of all along other axes; all False if not selected."""
    sizes = {axis: size for axis in PLACES if (size := site.size(axis)) is not None}
    tried = [axis for axis in by if axis in sizes]
    return {
        axis: (
            is_selected
            & (
                jnp.arange(size) == place[tried.index(axis)]
                if axis in tried
                else jnp.ones(size, bool)
            )
        )
        for axis, size in sizes.items()
    }


def summed(slope: Array, change: Array, site: ActivationSite, by: Sequence[str]) -> Array:
    """Sum slope `[metric, activation]` times change over all of its axes but those of `by`, which come first."""
    of_site = list(range(change.ndim))
    of_metric = list(range(change.ndim, slope.ndim))
    kept = [axis for each in by if (axis := site.axis(each)) is not None]
    return jnp.einsum(slope, [*of_metric, *of_site], change, of_site, [*kept, *of_metric])
