"""Forward pass with capture and patches, run once or once per site."""

import itertools
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
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
from transformer_jax.inspection.patches import Change, Changes, add
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

    def run(
        self, names: Sequence[str] = (), patches: Changes | None = None
    ) -> tuple[Any, Captured]:
        """Run the computation with activations captured and patched.

        Returns:
            The result, and the activations by name, in the order of the pass.

        Raises:
            InputError: as in `transformer_jax.patch`.
        """
        inspected = InspectedPass(names, patches or {})
        with nn.intercept_methods(inspected.intercept):
            result = self._call()
        inspected.check()
        return result, inspected.captured

    def sites(self, patterns: Sequence[str] = ("*",)) -> dict[str, ActivationSite]:
        """Return the activations of the pass by name, in order, by default all; nothing is computed.

        Raises:
            InputError: a pattern matches no activation.
        """
        inspected = InspectedPass(patterns, {}, keeps_values=False)
        with nn.intercept_methods(inspected.intercept):
            # a new function, because JAX caches the trace of a known one
            jax.eval_shape(lambda: self._call())
        inspected.check()
        return {
            name: site
            for name, site in inspected.activations.items()
            if any(matches(name, pattern) for pattern in patterns)
        }

    def run_with_added(self, added: Captured) -> Any:
        """Run the computation with arrays added to activations, and return its result."""
        result, _ = self.run(patches={name: add(array) for name, array in added.items()})
        return result


def forward_pass(
    model: nn.Module, variables: Variables, inputs: Sequence[object], kwargs: Mapping[str, Any]
) -> Computation:
    """Return one forward pass of a model, whose products have the full precision of float32 on every device.

    Raises:
        InputError: the variables lack "params", or an input is text.
    """
    if variables and "params" not in variables:
        names = ", ".join(list(variables)[:3])
        raise InputError(
            f'variables has {names}; it must be {{"params": …}}, such as {{"params": trained.params}}'
        )
    arrays = input_arrays(inputs)

    def call() -> Any:
        with jax.default_matmul_precision("highest"):
            return model.apply(unstack_layers(variables), *arrays, **kwargs)

    return Computation(call)


def input_arrays(inputs: Sequence[object]) -> list[Any]:  # of the model's own types
    """Convert the inputs of a model that are NumPy arrays to JAX's byte order; an `InputError` if one is text."""
    arrays: list[Any] = []
    for array in inputs:
        first = array[0] if isinstance(array, list | tuple) and array else array
        if isinstance(first, str | bytes):
            raise InputError(
                f"the input is {shortened(array)}; a model takes arrays. Encode the text:"
                " np.array([tokenizer.encode(text).ids]), or call"
                " load_transformers(directory).capture(text, names)"
            )
        arrays.append(as_array("input", array) if isinstance(array, np.ndarray) else array)
    return arrays


class Attention(NamedTuple):
    """An attention of a model."""

    head_outputs: ActivationSite  # `[B, H, T, d]`, `decoder.layers.1.cross_attention.head_outputs`
    stack: str  # `decoder`; empty in a stack without a model around it
    kind: str  # `encoder`, `decoder`, `cross`; `self` in a stack without a model around it

    def named(self, name: str) -> str:
        """Name of another activation of this attention: `weights`, `queries`."""
        return f"{self.head_outputs.name.removesuffix(OUTPUTS)}{name}"


def attentions(sites: Mapping[str, ActivationSite]) -> list[Attention]:
    """Return every attention of a pass, in order.

    Args:
        sites: all activations of the pass.

    Raises:
        InputError: the pass has no attention.
    """
    outputs = [site for name, site in sites.items() if name.endswith(OUTPUTS)]
    if not outputs:
        raise InputError("the model has no attention of this package; there is nothing to inspect")
    found = []
    for site in outputs:
        # `decoder.layers.1`, and `attention` or `cross_attention`
        block, _, module = site.name.removesuffix(OUTPUTS).rstrip(".").rpartition(".")
        stack = re.sub(r"\.?layers\.\d+$", "", block)
        kind = stack
        if module == "cross_attention":
            kind = "cross"
        elif module not in ("attention", ""):  # of a user's block
            kind = f"{stack}.{module}".strip(".")
        found.append(Attention(site, stack, kind or "self"))
    return found


def check_axes(sites: Collection[ActivationSite], by: Sequence[str]) -> None:
    """Raise an `InputError` if `by` holds anything but `PLACES`, or an activation has no such axis."""
    if len(set(by)) != len(by) or not set(by) <= set(PLACES):
        raise InputError(f"by is {by!r}; it must hold 'heads' or 'positions', or both")
    for site, axis in itertools.product(sites, by):
        if site.axis(axis) is None:
            raise InputError(
                f"by holds {axis!r}; {site.name} is [{site.letters}] and has no {axis}"
            )


def map_over_sites(
    sites: Collection[ActivationSite],
    by: Sequence[str],
    change: Callable[[str, Chosen], Change],
    run: Callable[[Mapping[str, Any]], Result],
) -> dict[str, Result]:
    """Run a pass for each head, each position, or each pair of head and position, of each given activation.

    All passes share one program, which runs `AT_ONCE` of them at a time.

    Args:
        sites: the activations.
        by: axes along which an activation is changed one place at a time, if it has them; other axes are changed whole.
        change: function from an activation's name and boolean masks of its heads and positions to a patch.
        run: function from one patch per activation, all but one of which select nothing, to the result of the pass.

    Returns:
        The results by activation; their leading axes are those of `by`, in the same order.
    """
    grids = [_sizes(site, by) for site in sites]
    # The first activation has the first passes, one for each of its places, and so on.
    ends = np.cumsum([math.prod(grid.values()) for grid in grids]).tolist()
    passes = [slice(begin, end) for begin, end in itertools.pairwise([0, *ends])]
    num_passes = ends[-1]
    sites_with_passes = list(zip(sites, grids, passes, strict=True))

    def result_of(number: Int[Array, ""]) -> Result:
        patches = {}
        for site, grid, own in sites_with_passes:  # `own`: passes of the site
            is_selected = (own.start <= number) & (number < own.stop)
            indices = jnp.unravel_index(number - own.start, tuple(grid.values()))
            place = dict(zip(grid, indices, strict=True))
            patches[site.name] = change(site.name, _chosen(site, place, is_selected))
        return run(patches)

    results = jax.lax.map(result_of, jnp.arange(num_passes), batch_size=min(AT_ONCE, num_passes))

    def results_of(grid: Mapping[str, int], own: slice) -> Result:
        return jax.tree.map(lambda x: x[own].reshape(*grid.values(), *x.shape[1:]), results)

    return OrderedDict((site.name, results_of(grid, own)) for site, grid, own in sites_with_passes)


def _sizes(site: ActivationSite, axes: Sequence[str]) -> dict[str, int]:
    """Sizes of the axes that an activation has."""
    sizes = {axis: site.size(axis) for axis in axes}
    return {axis: size for axis, size in sizes.items() if size is not None}


def _chosen(
    site: ActivationSite, place: Mapping[str, Array], is_selected: Bool[Array, ""]
) -> Chosen:
    """Masks of the place along each axis, and of all along axes that it lacks; all False if not selected."""
    masks = {}
    for axis, size in _sizes(site, PLACES).items():
        numbers = jnp.arange(size)
        chosen = place.get(axis, numbers)
        masks[axis] = is_selected & (numbers == chosen)
    return masks


def summed(slope: Array, change: Array, site: ActivationSite, by: Sequence[str]) -> Array:
    """Sum `slope [*metric *activation] · change [*activation]` over the activation's axes except those of `by`.

    The result is `[*by *metric]`; axes of `by` that the activation lacks are left out.
    """
    axes = list(range(change.ndim))  # numbers instead of letters, for `einsum`
    metric_axes = list(range(change.ndim, slope.ndim))
    kept_axes = [site.axis(axis) for axis in _sizes(site, by)]
    return jnp.einsum(slope, [*metric_axes, *axes], change, axes, [*kept_axes, *metric_axes])
