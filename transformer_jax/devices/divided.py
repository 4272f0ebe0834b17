"""Gathering of the split parameters in a step that the compiler divides."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.devices.sharing import Devices
from transformer_jax.devices.specs import TENSOR, path_name
from transformer_jax.mesh_axis import with_value
from transformer_jax.nn.layer_stacks import LAYER_INPUT, REMAT_POLICIES, STACKED, LayerAccess, Policy, layer_access
from transformer_jax.trees import Params

Function = TypeVar("Function", bound=Callable[..., Any])


def with_gathered_params(loss_function: Function, devices: Devices, remat: str) -> Function:
    """A loss function of split parameters, from one of parameters that are whole but for `tensor`.

    A parameter is gathered where it is used, and again in the backward pass, so that no device keeps it whole; of
    stacked layers one at a time, in the loop.

    Args:
        loss_function: takes the parameters first, and `train` by name.
        devices: that divide the step.
        remat: the model's setting: which activations of a block the backward pass computes again.
    """

    def gather(module: str, params: Params) -> Params:
        def gather_array(path: tuple[jax.tree_util.KeyEntry, ...], leaf: Array) -> Array:
            name = path_name(path)
            return leaf if STACKED in name.split("/") else _gathered(f"{module}/{name}", leaf, devices)

        return jax.tree_util.tree_map_with_path(gather_array, params)

    def loss(params: Params, *arguments: Any, train: bool) -> Any:  # pytrees of arrays
        def of_split(params: Params, *arguments: Any) -> Any:
            with with_value(
                layer_access, LayerAccess(lambda layer, params: gather(f"params/{layer}", params), _is_kept)
            ):
                return loss_function(gather("params", params), *arguments, train=train)

        return jax.checkpoint(of_split, policy=_kept_of_blocks(remat))(params, *arguments)

    return loss  # type: ignore[return-value]  # of the same signature


def _gathered(path: str, leaf: Array, devices: Devices) -> Array:
    split = devices.spec_of(path, leaf.shape, devices.mesh)
    gathered = PartitionSpec(*(axis if axis == TENSOR else None for axis in split))

    def constrain(part: Array) -> Array:
        return jax.lax.with_sharding_constraint(part, NamedSharding(devices.mesh, gathered))

    gather = jax.custom_vjp(constrain)

    def backward(_: None, gradient: Array) -> tuple[Array]:
        # Scattered as it is summed; the gradient of `gather` itself would be summed whole on each device.
        return (jax.lax.with_sharding_constraint(gradient, NamedSharding(devices.mesh, split)),)

    # Not by `gather`, whose result `jax.checkpoint` would keep as that of a function that it can't look into.
    gather.defvjp(lambda part: (constrain(part), None), backward)
    return gather(leaf)


def _kept_of_blocks(remat: str) -> Policy:
    """Checkpoint policy of the whole loss, which also governs the blocks' own checkpoints."""
    if remat == "none":
        return _is_kept
    inputs: Policy = jax.checkpoint_policies.save_only_these_names(LAYER_INPUT)
    of_block = REMAT_POLICIES[remat]
    if of_block is None:
        return inputs
    return jax.checkpoint_policies.save_from_both_policies(inputs, of_block)


def _is_kept(primitive: Primitive, *_: object, **__: Any) -> bool:
    """For `jax.checkpoint`: the backward pass may keep all but gathered parameters, which it gathers again."""
    return primitive.name != "sharding_constraint"
