"""Layers stacked along a leading axis inside a training step, and apart under their names everywhere else."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.devices.strategy import Layout
from transformer_jax.nn.layer_scan import LAYERS, Path, layer_name
from transformer_jax.training.metrics import Elements
from transformer_jax.training.optimizers import ByName
from transformer_jax.trees import Arrays, Params, Shapes

Tree = TypeVar("Tree")


class LayerStacks:
    """Which layers of a model are stacked, and the two forms of trees of its parameters' structure.

    `encoder/layers_0/norm/scale` of shape `[D]`, `encoder/layers_1/norm/scale`, … are in the stacked form one array
    `encoder/layers_*/norm/scale` of shape `[L, D]`.

    Args:
        params: of the model, or their shapes and types.
        scanned: from `recording_scanned_stacks`. A stack is left as it is where its layers differ, or the parameters
            have something else at its path, as where a task puts them together from those of several models.
    """

    def __init__(self, params: Params | Shapes, scanned: Mapping[Path, Sequence[Params | Shapes]]) -> None:
        self._num_layers = {
            path: len(layers) for path, layers in scanned.items() if _has(params, path, layers) and _are_alike(layers)
        }

    def __bool__(self) -> bool:
        return bool(self._num_layers)

    def stack(self, tree: Tree) -> Tree:
        """A tree that holds trees of the parameters' structure, such as an optimizer's state, with layers stacked.

        Layers of which the tree has different things, as where some are frozen, stay apart.
        """

        def change(path: Path, node: dict[str, Any]) -> dict[str, Any] | None:
            names = [layer_name(layer) for layer in range(self._count(path))]
            if not names or not set(names) <= node.keys() or not _are_alike([node[name] for name in names]):
                return None
            stacked = jax.tree.map(lambda *leaves: _stack(leaves), *(node[name] for name in names))
            return {name: part for name, part in node.items() if name not in names} | {LAYERS: stacked}

        return _replace(tree, change)

    def unstack(self, tree: Tree) -> Tree:
        """The tree that `stack` was given."""

        def change(path: Path, node: dict[str, Any]) -> dict[str, Any] | None:
            if LAYERS not in node:
                return None
            leaves, structure = jax.tree.flatten(node[LAYERS])
            num_layers = self._count(path)
            by_layer = zip(*map(_unstack, leaves), strict=True) if leaves else [()] * num_layers
            layers = {layer_name(i): jax.tree.unflatten(structure, of_layer) for i, of_layer in enumerate(by_layer)}
            return {name: part for name, part in node.items() if name != LAYERS} | layers

        return _replace(tree, change)

    def _count(self, path: Path) -> int:
        """Layers of the stack at the end of a path, 0 if there is none."""
        found = [stack for stack in self._num_layers if path[len(path) - len(stack) :] == stack]
        return self._num_layers[max(found, key=len)] if found else 0


class StackedStates:
    """The two forms of a training state: layers stacked, and apart under their names.

    Args:
        stacks: of the model's layers.
        params: of the model, or their shapes and types.
        optimizer: that updates them under their names.
    """

    def __init__(self, stacks: LayerStacks, params: Params | Shapes, optimizer: optax.GradientTransformation) -> None:
        self.stacks = stacks
        self.params: Shapes = jax.eval_shape(stacks.stack, params)  # in the stacked form
        self._stacks_optimizer = _updates_stacks(optimizer, stacks, params, self.params)
        self.optimizer = optimizer if self._stacks_optimizer else _by_name(optimizer, stacks)  # of the stacked form

    def stack(self, state: Any) -> Any:  # Any: a `TrainState`, or its shapes
        """The stacked form of a state."""
        opt_state = self.stacks.stack(state.opt_state) if self._stacks_optimizer else state.opt_state
        return state.replace(params=self.stacks.stack(state.params), opt_state=opt_state)

    def unstack(self, state: Any) -> Any:  # Any: a `TrainState`, or its shapes
        """The state that `stack` was given."""
        opt_state = self.stacks.unstack(state.opt_state) if self._stacks_optimizer else state.opt_state
        return state.replace(params=self.stacks.unstack(state.params), opt_state=opt_state)


class StackedLayout:
    """How the devices keep a training state whose layers are stacked: as another layout keeps the stacked form.

    Args:
        states: the two forms.
        inner: layout of the stacked form.
    """

    def __init__(self, states: StackedStates, inner: Layout) -> None:
        self._states, self._inner = states, inner

    def place(self, state: Tree) -> Tree:
        """A training state on the devices."""
        placed: Tree = self._inner.place(self._states.stack(state))
        return placed

    def shapes(self, state: Tree) -> Tree:
        """Shapes and types of a training state on the devices."""
        shapes: Tree = self._inner.shapes(jax.eval_shape(self._states.stack, state))
        return shapes

    def collect(self, placed: Tree) -> Tree:
        """The training state that was placed, its layers under their names."""
        state: Tree = self._states.unstack(self._inner.collect(placed))
        return state

    def of_named(self, loss_function: Callable[..., Elements]) -> Callable[..., Elements]:
        """Inside a step: a loss function of the state's parameters, from one of the stacked form, which models read."""
        return self._inner.of_named(loss_function)

    def arrange(self, tree: Arrays) -> Arrays:
        """A tree of the parameters' structure and shapes, in the layout that inside a step they have."""
        return self._inner.arrange(self._states.stacks.stack(tree))

    def keep(self, state: Tree) -> Tree:
        """Inside a compiled call: the state that it returns, to lie where the one that it got lay."""
        return self._inner.keep(state)


def _updates_stacks(
    optimizer: optax.GradientTransformation, stacks: LayerStacks, params: Params | Shapes, stacked: Shapes
) -> bool:
    """Whether an optimizer does the same to stacked layers as to layers apart.

    It says so by its class; but a part of the layers may be frozen, of which it keeps nothing.
    """
    if not isinstance(optimizer, ByName):
        return False
    of_named = jax.eval_shape(lambda params: stacks.stack(optimizer.init(params)), params)
    return _signature(of_named) == _signature(jax.eval_shape(optimizer.init, stacked))


def _by_name(optimizer: optax.GradientTransformation, stacks: LayerStacks) -> optax.GradientTransformationExtraArgs:
    """An optimizer of stacked parameters, of one that must see the layers apart; its state has them apart too."""
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Arrays) -> optax.OptState:
        return inner.init(stacks.unstack(params))

    def update(
        updates: Arrays, state: optax.OptState, params: Arrays | None = None, **more: Any
    ) -> tuple[Arrays, optax.OptState]:
        updates, state = inner.update(stacks.unstack(updates), state, stacks.unstack(params), **more)
        return stacks.stack(updates), state

    return optax.GradientTransformationExtraArgs(init, update)


def _has(params: Params | Shapes, path: Path, layers: Sequence[Params | Shapes]) -> bool:
    """Whether the parameters have these layers at a path, of these shapes; a lifted module's have more axes."""
    for name in path:
        params = params.get(name) if isinstance(params, dict) else None
    wanted = {layer_name(number): layer for number, layer in enumerate(layers)}
    found = {name: params[name] for name in wanted if name in params} if isinstance(params, dict) else {}
    return _signature(found) == _signature(wanted)


def _are_alike(layers: Sequence[Arrays | Shapes]) -> bool:
    return len({_signature(layer) for layer in layers}) == 1


def _signature(tree: Arrays | Shapes) -> tuple[object, ...]:
    """Structure, shapes and types."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, *((np.shape(leaf), str(leaf.dtype)) for leaf in leaves)


def _replace(tree: Tree, change: Callable[[Path, dict[str, Any]], dict[str, Any] | None], path: Path = ()) -> Tree:
    """Change the dictionaries of a tree for which `change`, of their path and content, gives another one."""

    def is_dict(node: object) -> bool:
        return type(node) is dict

    def visit(of_node: tuple[Any, ...], node: Any) -> Any:  # Any: keys of a path; a leaf or a dictionary
        if not is_dict(node):
            return node
        inside = (*path, *(entry.key for entry in of_node if isinstance(entry, jax.tree_util.DictKey)))
        changed = change(inside, node) or node
        return {  # what is new has no stacks inside
            name: _replace(part, change, (*inside, name)) if node.get(name) is part else part
            for name, part in sorted(changed.items())
        }

    replaced: Tree = jax.tree_util.tree_map_with_path(visit, tree, is_leaf=is_dict)
    return replaced


def _stack(leaves: Sequence[Any]) -> Any:  # Any: arrays, or what JAX traces in their place
    """One array with a leading axis."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return jnp.stack(leaves)
    if all(isinstance(leaf, Array) for leaf in leaves):
        wanted = _resharded(leaves[0], lambda spec: (None, *spec))
        return _stacking(wanted)(list(leaves))
    if not any(any(np.asarray(leaf).strides) for leaf in leaves):  # one number each, broadcast, which takes no memory
        numbers = np.array([leaf.flat[0] for leaf in leaves])
        return np.broadcast_to(numbers.reshape(-1, *[1] * leaves[0].ndim), (len(leaves), *leaves[0].shape))
    return np.stack(leaves)


def _unstack(stacked: Any) -> Sequence[Any]:  # Any: an array, or what JAX traces in its place
    """The arrays along the leading axis."""
    layers = range(len(stacked))
    if isinstance(stacked, jax.core.Tracer) or not isinstance(stacked, Array):
        return [stacked[layer] for layer in layers]
    wanted = _resharded(stacked, lambda spec: spec[1:])
    return [_taking(wanted)(stacked, layer) for layer in layers]


def _resharded(array: Array, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> NamedSharding | None:
    """How an array of other axes is to be split; None where this one is whole."""
    sharding = array.sharding
    if not isinstance(sharding, NamedSharding) or all(axis is None for axis in sharding.spec):
        return None
    return NamedSharding(sharding.mesh, PartitionSpec(*change(tuple(sharding.spec))))


@functools.cache
def _stacking(sharding: NamedSharding | None) -> Callable[[list[Array]], Array]:
    return jax.jit(lambda arrays: jnp.stack(arrays), out_shardings=sharding)


@functools.cache
def _taking(sharding: NamedSharding | None) -> Callable[[Array, int], Array]:
    # One program for all layers: one that returns all of them takes a second to compile.
    return jax.jit(
        lambda stacked, layer: jax.lax.dynamic_index_in_dim(stacked, layer, keepdims=False), out_shardings=sharding
    )
