"""Parameters of layers that run as a loop in the program: stacked along a leading axis, or apart under their names.

With `BlockSettings(scan_layers=True)` a stack of L blocks is initialised with one entry `stacked_layers`, whose arrays
have a leading axis of the layers, in the place of `layers_0` … `layers_{L-1}`. A model runs either form: stacked as a
loop, so that one layer is compiled whatever L, and apart as L layers. Files and inspection have them apart.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from transformer_jax.trees import Params

Tree = TypeVar("Tree")

STACKED = "stacked_layers"
LAYER_INPUT = "input of a layer"  # its name for `jax.checkpoint`
Policy: TypeAlias = Callable[..., bool]  # of `jax.checkpoint`: which values the backward pass may keep
# By the setting `remat`: what of a layer is kept; None for nothing.
REMAT_POLICIES: Mapping[str, Policy | None] = {
    "dots": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    "all": None,
}


class LayerAccess(NamedTuple):
    """How the rounds of a loop over layers read their parameters, where devices have a part of each."""

    read: Callable[[str, Params], Params]  # of a layer's path and its part of the stacked parameters
    policy: Policy  # what of a round is kept for the backward pass


# How a loop over layers that is traced now reads its parameters; None for as they are.
layer_access: ContextVar[LayerAccess | None] = ContextVar("layer_access", default=None)


def layer_name(number: int) -> str:
    """`layers_3`, the entry of a stack's parameters that holds layer 3."""
    return f"layers_{number}"


def unstack_layers(tree: Tree) -> Tree:
    """A tree with the layers apart, from parameters or from a pytree that holds such: the state of an optimizer."""

    def unstack(part: object) -> object:
        if not isinstance(part, Mapping):
            return part
        apart: dict[str, object] = {}
        for name, entry in part.items():
            if name == STACKED:
                for number in range(len(jax.tree.leaves(entry)[0])):
                    apart[layer_name(number)] = jax.tree.map(lambda stacked, i=number: stacked[i], entry)
            else:
                apart[name] = unstack_layers(entry)
        return apart

    return jax.tree.map(unstack, tree, is_leaf=lambda part: isinstance(part, Mapping))


def stack_layers(tree: Tree, like: Tree) -> Tree:
    """The inverse of `unstack_layers`.

    Args:
        tree: with layers apart.
        like: of the structure of the result: arrays, or their shapes. Where nothing is stacked, `tree` is returned.
    """

    def stack(like_part: object, part: object) -> object:
        if not isinstance(like_part, Mapping) or not isinstance(part, Mapping):
            return part
        stacked: dict[str, object] = {}
        for name, entry in like_part.items():
            if name == STACKED and STACKED not in part:
                layers = [part[layer_name(number)] for number in range(jax.tree.leaves(entry)[0].shape[0])]
                stacked[name] = jax.tree.map(lambda *of_layers: jnp.stack(of_layers), *layers)
            else:
                stacked[name] = stack_layers(part[name], entry)
        return stacked

    return jax.tree.map(stack, like, tree, is_leaf=lambda part: isinstance(part, Mapping))
