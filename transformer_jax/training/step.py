"""One training step as pure functions: gradients and sums of metrics, then the update."""

from typing import NamedTuple, Protocol, no_type_check, runtime_checkable

import flax.struct
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Int, PRNGKeyArray

from transformer_jax.data.batch import Batch
from transformer_jax.mesh_axis import part_of_rows, sum_over_devices
from transformer_jax.training.metrics import Elements, Sums, layer_norms, weighted_sums
from transformer_jax.trees import Arrays


@no_type_check  # JAX also constructs states from shapes and placeholders
class TrainState(flax.struct.PyTreeNode):
    """Everything that a step changes, and its random key; all are arrays."""

    step: Int[Array, ""]  # updates so far
    params: Arrays  # of the model; its layers are stacked if the model loops over them
    opt_state: optax.OptState
    key: PRNGKeyArray  # never changed; each step draws with `fold_in(key, step)`


@runtime_checkable
class LossFunction(Protocol):
    """Function that computes the loss and metrics of each element of a batch.

    For a task it is `Task.batch_loss`, which calls `prepare` with the constants, then the task's `loss_function`.
    """

    def __call__(
        self,
        params: Arrays,
        batch: Batch,
        constants: Arrays,
        key: PRNGKeyArray | None,
        *,
        train: bool,
    ) -> Elements:
        """Return values and weights by metric, including `loss`."""


class UpdateRule(NamedTuple):
    """How a gradient is computed, and how it changes the parameters."""

    optimizer: optax.GradientTransformation
    schedule: optax.Schedule  # learning rate at a step, for the log; the optimizer has its own
    gradient_clip: float | None  # largest global norm of the gradient; None does not clip
    # parts of a batch, whose gradients are computed one after another and added up
    num_parts: int = 1
    log_norms: bool = False  # whether the sums hold the norm of each layer's gradient


def initial_state(
    params: Arrays, optimizer: optax.GradientTransformation, key: PRNGKeyArray
) -> TrainState:
    """The state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params), key)


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
    gradients, sums = gradients_and_sums(state, batch, constants, loss_function, rule.num_parts)
    return update(state, gradients, sums, rule)


def gradients_and_sums(
    state: TrainState,
    batch: Batch,
    constants: Arrays,
    loss_function: LossFunction,
    num_parts: int = 1,
) -> tuple[Arrays, Sums]:
    """Gradient of the sum of the batch's losses, and the sums of its metrics, over all devices that share the batch.

    Both add up over parts of a batch. With `num_parts` above 1 the parts are computed one after another, and reuse the
    same memory.
    """
    key = jax.random.fold_in(state.key, state.step)

    def total_loss(params: Arrays, part: Batch) -> tuple[Array, Sums]:
        sums = weighted_sums(loss_function(params, part, constants, key, train=True), part.valid)
        return jnp.asarray(sums["loss"][0]), sums

    differentiate = jax.grad(total_loss, has_aux=True)
    if num_parts == 1:
        return sum_over_devices(differentiate(state.params, batch))

    def add_part(
        total: tuple[Arrays, Sums], number_and_part: tuple[Array, Batch]
    ) -> tuple[tuple[Arrays, Sums], None]:
        number, part = number_and_part
        with part_of_rows(number, num_parts):
            of_part = differentiate(state.params, part)
        return jax.tree.map(jnp.add, total, of_part), None

    parts = jax.tree.map(lambda rows: rows.reshape(num_parts, -1, *rows.shape[1:]), batch)
    first_part = jax.tree.map(lambda rows: rows[0], parts)
    with part_of_rows(0, num_parts):
        shapes = jax.eval_shape(differentiate, state.params, first_part)
    zeros = jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), shapes)
    total, _ = jax.lax.scan(add_part, zeros, (jnp.arange(num_parts), parts))
    return sum_over_devices(total)


def update(
    state: TrainState, gradients: Arrays, sums: Sums, rule: UpdateRule
) -> tuple[TrainState, Sums]:
    """Apply the gradient of the mean loss, clipped by its global norm if the rule says so.

    Args:
        state: before the update.
        gradients: of the sum of the losses.
        sums: of the same batch's metrics; division by the weight of `loss` turns the sum into a mean.
        rule: optimizer, clipping and accumulation of gradients.
    """
    weight = jnp.asarray(sums["loss"][1])
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
        clipped, state.opt_state, state.params, step=state.step, value=loss
    )
    params = optax.apply_updates(state.params, updates)
    sums = sums | {
        "gradient_norm": (norm, jnp.ones(())),
        "learning_rate": (jnp.asarray(rule.schedule(state.step)), jnp.ones(())),
    }
    if rule.log_norms:
        for layer, norm_of_layer in layer_norms(gradients).items():
            sums[f"gradient_norm/{layer}"] = (norm_of_layer / weight, 1.0)
    return state.replace(step=state.step + 1, params=params, opt_state=opt_state), sums
