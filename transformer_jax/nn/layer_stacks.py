"""Layers that run as a loop in the program, are recomputed in the backward pass, or share their parameters.

With `BlockSettings(scan_layers=True)` a stack of L blocks is initialised with one entry `stacked_layers`, whose arrays
have a leading axis of the layers, in the place of `layers_0` … `layers_{L-1}`. A model runs either form: stacked as a
loop, so that one layer is compiled whatever L, and apart as L layers. Files and inspection have them apart.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeAlias, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import ArrayLike

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


def set_up_layers(stack: Any) -> None:
    """In the `setup` of a stack: its layers as one module with stacked parameters, or with those of the first one."""
    if stack.settings.share_layers:  # blocks after the first read its parameters
        shared = nn.map_variables(
            stack.block, "params", lambda _: {"params": stack.variables["params"][layer_name(0)]}, methods=["__call__"]
        )
        stack.layers = [stack.make_block(shared if number else None) for number in range(stack.num_layers)]
    else:
        stack.stacked_layers = stack.make_block()


def wrapped_layers(stack: Any, *, train: bool) -> list[Callable[..., Array]]:
    """The blocks of a stack, called as the blocks are: scanned as one of them, recomputed, or both.

    Args:
        stack: a bound `Stack`.
        train: whether there is a backward pass, in which activations can be computed again.
    """
    is_scanned = hasattr(stack, STACKED)

    def run_block(block: Any, x: ArrayLike, *arrays: Any) -> Array:  # flags are no arrays
        *inputs, shared = arrays
        return block(x, *inputs, train=train, **shared)

    policies = [REMAT_POLICIES[stack.settings.remat]] if stack.settings.remat != "none" and train else []
    access = layer_access.get() if is_scanned and not stack.is_initializing() else None
    if access is not None:
        path, read = "/".join((*stack.path, layer_name(0))), access.read
        run_block = nn.map_variables(run_block, "params", lambda held: {"params": read(path, held["params"])})
        policies = policies or [access.policy]
    if policies and not stack.is_asked():
        run_block = nn.remat(run_block, policy=policies[0], prevent_cse=not is_scanned)  # a loop prevents it

    def run_named(block: Any, x: ArrayLike, *arrays: Any) -> Array:
        return run_block(block, checkpoint_name(x, LAYER_INPUT), *arrays)

    def of_round(block: Any, x: ArrayLike, *arrays: Any) -> tuple[Array, None]:
        return run_named(block, x, *arrays), None

    def scanned(x: ArrayLike, *inputs: Any, train: bool, **shared: Any) -> Array:
        scan = nn.scan(
            of_round,
            variable_axes={"params": 0},
            split_rngs={True: True},  # all of them
            in_axes=nn.broadcast,
            length=stack.num_layers,
        )
        weights = jax.tree.leaves(stack.variables.get("params", {}).get(STACKED, jnp.zeros(())))
        x = jnp.asarray(x, jnp.result_type(x, *weights))  # as it comes out of a layer
        return checkpoint_name(scan(stack.stacked_layers, x, *inputs, shared)[0], LAYER_INPUT)

    def of(block: Any) -> Callable[..., Array]:
        run = run_named if policies else run_block
        return lambda x, *inputs, train, **shared: run(block, x, *inputs, shared)

    return [scanned] if is_scanned else [of(block) for block in stack.layers]


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
