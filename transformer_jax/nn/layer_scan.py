"""A stack's layers as a loop in the program, over parameters that are stacked along a leading axis."""

import contextlib
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from transformer_jax.trees import Params, Shapes

# Entry of a stack's parameters that stands for `layers_0`, `layers_1`, …: each array has a leading axis of the layers.
# No module can have this name.
LAYERS = "layers_*"

LAYER_INPUT = "input of a layer"  # its name for `jax.checkpoint`

Path: TypeAlias = tuple[str, ...]  # of a module


class LayerAccess(NamedTuple):
    """How a step reads the parameters of one layer out of stacked ones."""

    # Of the parameters and the path of a layer: the parameters that it computes with.
    take: Callable[[Params, Path], Params]
    policy: Callable[..., bool]  # of `jax.checkpoint`: what of a layer the backward pass may keep


_access: ContextVar[LayerAccess | None] = ContextVar("_access", default=None)
_recorded: ContextVar[dict[Path, list[Shapes]] | None] = ContextVar("_recorded", default=None)


@contextlib.contextmanager
def layers_taken_by(access: LayerAccess) -> Iterator[None]:
    """A block that is traced with this access to stacked layers."""
    token = _access.set(access)
    try:
        yield
    finally:
        _access.reset(token)


@contextlib.contextmanager
def recording_scanned_stacks() -> Iterator[Mapping[Path, Sequence[Shapes]]]:
    """A block that initialises models: the stacks among them that will loop over their layers.

    Yields:
        By the stack's path the shapes of each of its layers' parameters, filled while the block runs.
    """
    recorded: dict[Path, list[Shapes]] = {}
    token = _recorded.set(recorded)
    try:
        yield recorded
    finally:
        _recorded.reset(token)


def record_scanned_stack(path: Path, layers: Sequence[Params]) -> None:
    """Note a stack that will loop over its layers, for `recording_scanned_stacks`."""
    recorded = _recorded.get()
    if recorded is not None:
        recorded[path] = [
            jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), dict(layer)) for layer in layers
        ]


def layer_name(number: int) -> str:
    """`layers_3`, the entry of a stack's parameters that holds layer 3."""
    return f"layers_{number}"


def has_stacked_layers(params: Params) -> bool:
    """Whether the layers of some stack are stacked in these parameters of a model."""
    return any(name == LAYERS or (isinstance(part, dict) and has_stacked_layers(part)) for name, part in params.items())


def scan_layers(
    run_layer: Callable[[Array, Params, Any], tuple[Array, Any]],
    x: Array,
    stacked: Params,
    more: Any,
    path: Path,
    *,
    remat: Callable[[Callable[..., Any]], Callable[..., Any]] | None,
) -> tuple[Array, Any]:
    """Run layers one after another as a loop in the program, so that one is compiled, whatever their number.

    Args:
        run_layer: of the layer's input, its parameters and its part of `more`; returns its output and its results.
        x: the first layer's input.
        stacked: the parameters of all layers, each array `[L, ...]`.
        more: a pytree of arrays `[L, ...]`.
        path: of the stack.
        remat: makes of a function one whose backward pass computes activations again; None for none.

    Returns:
        The last layer's output, and the results of all layers, each array `[L, ...]`.
    """
    access = _access.get()

    def run(x: Array, of_layer: tuple[Params, Any]) -> tuple[Array, Any]:
        params, more = of_layer
        if access is not None:
            params = access.take(params, (*path, layer_name(0)))
        return run_layer(x, params, more)

    if remat is not None:
        run = remat(run)
    elif access is not None:
        run = jax.checkpoint(run, prevent_cse=False, policy=access.policy)

    def named(x: Array, of_layer: tuple[Params, Any]) -> tuple[Array, Any]:
        return run(checkpoint_name(x, LAYER_INPUT), of_layer)

    output, results = jax.lax.scan(named, x, (stacked, more))
    return checkpoint_name(output, LAYER_INPUT), results


def stack(layers: Sequence[Params]) -> Params:
    """The parameters of layers as one tree, each array with a leading axis of the layers."""
    stacked: Params = jax.tree.map(lambda *of_layers: jnp.stack(of_layers), *layers)
    return stacked


def unstack(params: Params) -> Params:
    """Parameters of a model in which no layers are stacked; those that are go apart under their names."""
    unstacked: dict[str, Any] = {}
    for name, part in params.items():
        if name == LAYERS:
            for layer in range(len(jax.tree.leaves(part)[0])):
                unstacked[layer_name(layer)] = jax.tree.map(operator.itemgetter(layer), part)
        else:
            unstacked[name] = unstack(part) if isinstance(part, Mapping) else part
    return unstacked
