"""One training step as pure functions: gradients and sums of metrics, then the update."""

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, no_type_check

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.data.batch import Batch
from transformer_jax.mesh_axis import new_variables, sum_over_devices, sum_over_parts, with_value
from transformer_jax.training.metrics import (
    NO_TERMS,
    LossFunction,
    LossTerms,
    Sums,
    layer_norms,
    share_of_loss,
    total_weights,
    weighted_sums,
    with_loss,
)
from transformer_jax.trees import Arrays, Params, Variables, join_variables, split_variables


@no_type_check  # JAX also constructs states from shapes and placeholders
class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes, and its random key; all are arrays."""

    step: Int[Array, ""]  # updates so far
    params: Arrays  # of the model; its layers are stacked if the model loops over them
    opt_state: optax.OptState
    key: PRNGKeyArray  # never changed; each step draws with `fold_in(key, step)`


class UpdateRule(NamedTuple):
    """How a gradient is computed, and how it changes the parameters."""

    optimizer: optax.GradientTransformation
    schedule: optax.Schedule  # learning rate at a step, for the log; the optimizer has its own
    gradient_clip: float | None  # largest global norm of the gradient; None does not clip
    num_parts: int = 1  # of a batch, whose gradients are computed one after another and added up
    log_norms: bool = False  # whether the sums hold the norm of each layer's gradient
    loss_terms: LossTerms = NO_TERMS  # factors of the terms of the loss


def initial_state(
    params: Arrays, optimizer: optax.GradientTransformation, key: PRNGKeyArray
) -> TrainState:
    """The state before the first step."""
    trained, _ = split_variables(params)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(trained), key)


def train_step(
    state: TrainState,
    batch: Batch,
    constants: Arrays,
    *,
    loss_function: LossFunction,
    rule: UpdateRule,
) -> tuple[TrainState, Sums]:
    """Update the state once.

    Args:
        state: before the step.
        batch: of the step; if devices share it, the rows of one device.
        constants: arrays that the loss function reads at every step.
        loss_function: its weighted mean is minimised.
        rule: optimizer, clipping and accumulation of gradients.

    Returns:
        The state after the step, and the sums of the batch's metrics, the gradient's norm and the learning rate.
    """
    gradients, sums = gradients_and_sums(
        state, batch, constants, loss_function, rule.num_parts, rule.loss_terms
    )
    return update(state, gradients, sums, rule)


def gradients_and_sums(
    state: TrainState,
    batch: Batch,
    constants: Arrays,
    loss_function: LossFunction,
    num_parts: int = 1,
    loss_terms: LossTerms = NO_TERMS,
) -> tuple[Arrays, Sums]:
    """Gradient of the sum of the batch's losses, and the sums of its metrics, over all devices that share the batch.

    Both add up over parts of a batch. With `num_parts` above 1 the parts are computed one after another, and reuse the
    same memory. A loss with terms is the sum of their means over the whole batch.
    """
    key = jax.random.fold_in(state.key, state.step)
    trained, variables = split_variables(state.params)

    def total_loss(
        trained: Params, part: Batch, variables: Variables, weights: Mapping[str, ArrayLike]
    ) -> tuple[Array, tuple[Sums, Variables]]:
        params, changed = join_variables(trained, variables), {**variables}
        with with_value(new_variables, changed):
            elements = loss_function(
                params, part, constants, key, train=True
            )  # a task's `batch_loss`
        sums = weighted_sums(elements, part.valid, loss_terms)
        return share_of_loss(sums, loss_terms, weights), (sums, changed)

    # {} for a loss without terms, and for an undivided batch: there is no second forward pass
    weights = total_weights(partial(total_loss, trained), batch, variables, num_parts, loss_terms)
    differentiate = partial(jax.grad(total_loss, has_aux=True), trained, weights=weights)
    if num_parts == 1:
        gradients, (sums, variables) = differentiate(batch, variables)
    else:
        gradients, (sums, variables) = sum_over_parts(differentiate, batch, variables, num_parts)
    gradients, sums = sum_over_devices((gradients, sums))
    return join_variables(gradients, variables), with_loss(sums, loss_terms)


def update(
    state: TrainState, gradients: Arrays, sums: Sums, rule: UpdateRule
) -> tuple[TrainState, Sums]:
    """Apply the gradient of the mean loss, clipped by its global norm if the rule says so.

    Args:
        state: before the update.
        gradients: of the sum of the losses, and the model's new variables that are not parameters.
        sums: of the same batch's metrics; division by the weight of `loss` turns the sum into a mean.
        rule: optimizer, clipping and accumulation of gradients.
    """
    gradients, variables = split_variables(gradients)  # variables: new values, no gradients
    trained, _ = split_variables(state.params)
    weight = jnp.asarray(sums["loss"][1])  # of all elements; `sums["loss"][0]` is their loss
    norm = optax.tree.norm(gradients) / weight
    clip_factor = jnp.ones(())
    if rule.gradient_clip is not None:
        clip_factor = jnp.minimum(1, rule.gradient_clip / norm)
    # A single factor: XLA would divide by the weight and clip in two passes, and store the mean gradient between them.
    scale = clip_factor / weight
    clipped = jax.tree.map(lambda gradient: (gradient * scale).astype(gradient.dtype), gradients)
    optimizer = optax.with_extra_args_support(rule.optimizer)
    loss = jnp.asarray(sums["loss"][0]) / weight
    updates, opt_state = optimizer.update(
        clipped, state.opt_state, trained, step=state.step, value=loss
    )
    params = join_variables(optax.apply_updates(trained, updates), variables)
    rate = rule.schedule(state.step) * optax.tree.get(state.opt_state, "plateau_scale", 1.0)
    sums = sums | {
        "gradient_norm": (norm, jnp.ones(())),
        "learning_rate": (jnp.asarray(rate), jnp.ones(())),
    }
    if rule.log_norms:
        for layer, norm_of_layer in layer_norms(gradients).items():
            sums[f"gradient_norm/{layer}"] = (norm_of_layer / weight, 1.0)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state), sums
