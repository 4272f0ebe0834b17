"""All-gather of sharded parameters, in a step that XLA partitions."""

from typing import Any

import jax
from jax import Array
from jax.extend.core import Primitive
from jax.sharding import NamedSharding, PartitionSpec

from transformer_jax.devices.sharing import Devices, Function
from transformer_jax.devices.specs import TENSOR, KeyPath, path_name
from transformer_jax.mesh_axis import new_variables, with_value
from transformer_jax.nn.layer_stacks import (
    LAYER_INPUT,
    REMAT_POLICIES,
    STACKED,
    LayerAccess,
    Policy,
    layer_access,
)
from transformer_jax.trees import Params


def with_gathered_params(loss_function: Function, devices: Devices, remat: str) -> Function:
    """Wrap a loss function of parameters that are split at most over `tensor`, to take sharded parameters.

    A parameter is gathered where it is used, and again in the backward pass, so that no device keeps all of it. Stacked
    layers are gathered one at a time, in the loop.

    Args:
        loss_function: takes the parameters first, and `train` by name.
        devices: devices that share the step.
        remat: the model's setting: which activations of a block the backward pass recomputes.
    """

    def gather(module: str, params: Params) -> Params:
        def gather_array(path: KeyPath, leaf: Array) -> Array:
            name = path_name(path)
            if STACKED in name.split("/"):
                return leaf
            return _gathered(f"{module}/{name}", leaf, devices)

        return jax.tree_util.tree_map_with_path(gather_array, params)

    def loss(params: Params, *arguments: Any, train: bool) -> Any:  # pytrees of arrays
        def loss_of_split(params: Params, *arguments: Any) -> Any:
            access = LayerAccess(
                lambda layer, params: gather(f"params/{layer}", params), _is_not_gathered
            )
            changed_variables: dict[str, Params] = {}
            with with_value(layer_access, access), with_value(new_variables, changed_variables):
                elements = loss_function(gather("params", params), *arguments, train=train)
            return elements, changed_variables

        recomputed_loss = jax.checkpoint(loss_of_split, policy=_policy_of_loss(remat))
        elements, changed_variables = recomputed_loss(params, *arguments)
        new_variables.get({}).update(changed_variables)
        return elements

    return loss  # type: ignore[return-value]  # of the same signature


def _gathered(path: str, leaf: Array, devices: Devices) -> Array:
    spec = devices.spec_of(path, leaf.shape, devices.mesh)
    gathered_spec = PartitionSpec(*(axis if axis == TENSOR else None for axis in spec))
    split = NamedSharding(devices.mesh, spec)
    gathered = NamedSharding(devices.mesh, gathered_spec)

    def constrain(part: Array) -> Array:
        return jax.lax.with_sharding_constraint(part, gathered)

    gather = jax.custom_vjp(constrain)

    def backward(_: None, gradient: Array) -> tuple[Array]:
        # Reduce-scatter; the gradient of `gather` itself would be summed in full on each device.
        return (jax.lax.with_sharding_constraint(gradient, split),)

    # Not `gather`, since `jax.checkpoint` can't look into it and would save its result.
    gather.defvjp(lambda part: (constrain(part), None), backward)
    return gather(leaf)


def _policy_of_loss(remat: str) -> Policy:
    """Checkpoint policy of the whole loss, which also governs the blocks' own checkpoints."""
    if remat == "none":
        return _is_not_gathered
    saves_inputs: Policy = jax.checkpoint_policies.save_only_these_names(LAYER_INPUT)
    policy_of_block = REMAT_POLICIES[remat]
    if policy_of_block is None:
        return saves_inputs
    return jax.checkpoint_policies.save_from_both_policies(saves_inputs, policy_of_block)


def _is_not_gathered(primitive: Primitive, *_: object, **__: Any) -> bool:
    """Policy for `jax.checkpoint`: save everything but gathered parameters, which are gathered again."""
    return primitive.name != "sharding_constraint"
