"""Layers that run as a loop in the compiled program, are recomputed in the backward pass, or share their parameters.

With `BlockSettings(scan_layers=True)` the parameters of L blocks are initialized as one entry `stacked_layers`, whose
arrays have a leading axis of layers, instead of `layers_0` … `layers_{L-1}`. A model accepts both forms: stacked layers
run as a loop, so that only one layer is compiled. Files and inspection use unstacked layers.
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
LAYER_INPUT = "input of a layer"  # its name for policies of `jax.checkpoint`
# of `jax.checkpoint`: which values are saved for the backward pass
Policy: TypeAlias = Callable[..., bool]
# Checkpoint policy by value of the setting `remat`; None saves nothing.
REMAT_POLICIES: Mapping[str, Policy | None] = {
    "dots": jax.checkpoint_policies.checkpoint_dots_with_no_batch_dims,
    "all": None,
}


class LayerAccess(NamedTuple):
    """How each iteration of a loop over layers reads its parameters if they are sharded over devices."""

    # takes the path of a layer and its slice of the stacked parameters
    read: Callable[[str, Params], Params]
    policy: Policy  # what is saved of an iteration for the backward pass


# How loops over layers read their parameters while a step is traced; None: unchanged.
layer_access: ContextVar[LayerAccess | None] = ContextVar("layer_access", default=None)


def set_up_layers(stack: Any) -> None:
    """Create the layers in the `setup` of a stack: one module with stacked parameters, or layers that share theirs."""
    if stack.settings.share_layers:  # blocks after the first read the parameters of the first
        shared = nn.map_variables(
            stack.block,
            "params",
            lambda _: {"params": stack.variables["params"][layer_name(0)]},
            methods=["__call__"],
        )
        stack.layers = [
            stack.make_block(number, shared if number else None)
            for number in range(stack.num_layers)
        ]
    else:
        stack.stacked_layers = stack.make_block()


def wrapped_layers(stack: Any, *, train: bool) -> list[Callable[..., Array]]:
    """Return the blocks of a stack as functions with the same arguments: scanned, recomputed, or both.

    Args:
        stack: a bound `Stack`.
        train: whether a backward pass follows, in which activations can be recomputed.
    """
    is_scanned = hasattr(stack, STACKED)

    def run_block(block: Any, x: ArrayLike, *arrays: Any) -> Array:  # `train` is not an array
        *inputs, shared = arrays
        return block(x, *inputs, train=train, **shared)

    remat = stack.settings.remat
    is_recomputed = train and remat != "none"
    policy = REMAT_POLICIES[remat] if is_recomputed else None
    access = layer_access.get()
    if access is not None and is_scanned and not stack.is_initializing():
        path = "/".join((*stack.path, layer_name(0)))
        read = access.read
        run_block = nn.map_variables(
            run_block, "params", lambda held: {"params": read(path, held["params"])}
        )
        if not is_recomputed:
            is_recomputed = True
            policy = access.policy
    if is_recomputed and not stack.is_requested():
        # a loop prevents CSE by itself
        run_block = nn.remat(run_block, policy=policy, prevent_cse=not is_scanned)

    def run_named(block: Any, x: ArrayLike, *arrays: Any) -> Array:
        return run_block(block, checkpoint_name(x, LAYER_INPUT), *arrays)

    def run_round(block: Any, x: ArrayLike, *arrays: Any) -> tuple[Array, None]:
        return run_named(block, x, *arrays), None

    def scanned(x: ArrayLike, *inputs: Any, train: bool, **shared: Any) -> Array:
        scan = nn.scan(
            run_round,
            variable_axes={"params": 0},
            split_rngs={True: True},  # separate random keys of every kind per layer
            in_axes=nn.broadcast,
            length=stack.num_layers,
        )
        params = stack.variables.get("params", {})  # none yet during initialization
        weights = jax.tree.leaves(params.get(STACKED, jnp.zeros(())))
        # The loop's input must have the dtype of its output.
        x = jnp.asarray(x, jnp.result_type(x, *weights))
        output, _ = scan(stack.stacked_layers, x, *inputs, shared)
        return checkpoint_name(output, LAYER_INPUT)

    def wrapped(block: Any) -> Callable[..., Array]:
        return lambda x, *inputs, train, **shared: run_named(block, x, *inputs, shared)

    return [scanned] if is_scanned else [wrapped(block) for block in stack.layers]


def layer_name(number: int) -> str:
    """Return the name of a layer in the parameters of a stack: `layers_3` for layer 3."""
    return f"layers_{number}"


def unstack_layers(tree: Tree) -> Tree:
    """Unstack the layers in parameters, or in a pytree that contains parameter trees, such as an optimizer's state."""

    def unstack(part: object) -> object:
        if not isinstance(part, Mapping):
            return part
        unstacked: dict[str, object] = {}
        for name, entry in part.items():
            if name == STACKED:
                for number in range(len(jax.tree.leaves(entry)[0])):
                    unstacked[layer_name(number)] = jax.tree.map(
                        lambda stacked, i=number: stacked[i], entry
                    )
            else:
                unstacked[name] = unstack_layers(entry)
        return unstacked

    return jax.tree.map(unstack, tree, is_leaf=lambda part: isinstance(part, Mapping))


def stack_layers(tree: Tree, like: Tree) -> Tree:
    """Invert `unstack_layers`.

    Args:
        tree: a tree with unstacked layers.
        like: arrays or shapes in the structure of the result; parts of it without stacked layers stay unstacked.
    """

    def stack(like_part: object, part: object) -> object:
        if not isinstance(like_part, Mapping) or not isinstance(part, Mapping):
            return part
        stacked: dict[str, object] = {}
        for name, entry in like_part.items():
            if name == STACKED and STACKED not in part:
                num_layers = jax.tree.leaves(entry)[0].shape[0]
                layers = [part[layer_name(number)] for number in range(num_layers)]
                stacked[name] = jax.tree.map(lambda *arrays: jnp.stack(arrays), *layers)
            else:
                stacked[name] = stack_layers(part[name], entry)
        return stacked

    return jax.tree.map(stack, like, tree, is_leaf=lambda part: isinstance(part, Mapping))
