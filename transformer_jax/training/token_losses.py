"""Cross-entropy of a language model's tokens: of a large vocabulary the logits are never all there at once."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.training.trainer import TrainerModule
from transformer_jax.trees import Params

LARGEST = 2**28  # bytes of logits in float32 that a device holds at once


def token_losses(
    trainer: TrainerModule,
    params: Params,
    tokens: Int[ArrayLike, "B T"],
    targets: Int[ArrayLike, "B T"],
    key: PRNGKeyArray | None,
    *,
    train: bool,
) -> Float[Array, "B T"]:
    """The cross-entropy of each target, for a `loss_function`.

    Where the logits of all positions would be larger than 256 MiB on a device, a `TransformerLM` makes them for some
    positions after others, and in the backward pass again: 2 D V more FLOPs for each token. The result differs by
    rounding. (A subclass may make its logits otherwise: it gets them all at once.)

    Args:
        trainer: of the model.
        params: of the model.
        tokens: as `prepare` gives them.
        targets: ids in the vocabulary; a negative one, which a weight of 0 must leave out, counts as 0.
        key: for dropout; None where `train` is False.
        train: whether dropout is applied.
    """
    model, devices, targets = trainer.model, trainer.devices, jnp.asarray(targets)
    if type(model) is TransformerLM:
        rows = -(-len(targets) // (devices.rows_that_divide(1) if devices.partitioned_by_xla else 1))  # of a device
        at_once = max(1, LARGEST // (4 * rows * model.vocabulary_size))  # positions
        if at_once < targets.shape[1]:
            hidden = trainer.apply(params, tokens, key, train=train, method="hidden_states")
            return _in_parts(trainer, {name: params[name] for name in model.output_params}, hidden, targets, at_once)
    return _cross_entropy(trainer.apply(params, tokens, key, train=train), targets)


def _cross_entropy(logits: Float[Array, "*rows V"], targets: Int[Array, "*rows"]) -> Float[Array, "*rows"]:
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(targets, 0))


def _in_parts(
    trainer: TrainerModule, head: Params, hidden: Float[Array, "B T D"], targets: Int[Array, "B T"], at_once: int
) -> Float[Array, "B T"]:
    @jax.checkpoint
    def of_position(head: Params, hidden: Float[Array, "B D"], targets: Int[Array, " B"]) -> Float[Array, " B"]:
        # Parameters are rounded in here, so that their gradients are summed over the parts in float32.
        variables, (x,) = trainer.in_dtype({"params": head}, (hidden[:, None],))
        logits: Any = trainer.model.apply(variables, x, method="project")
        return _cross_entropy(logits[:, 0].astype(jnp.float32), targets)

    def of_all(head: Params, hidden: Float[Array, "T B D"], targets: Int[Array, "T B"]) -> Float[Array, "T B"]:
        return jax.lax.map(lambda pair: of_position(head, *pair), (hidden, targets), batch_size=at_once)

    def backward(arguments: Any, cotangent: Float[Array, "T B"]) -> tuple[Any, ...]:  # those of `of_all`
        head, hidden, targets = arguments
        return *jax.vjp(lambda head, hidden: of_all(head, hidden, targets), head, hidden)[1](cotangent), None

    # A derivative of its own, since the policy of a `jax.checkpoint` around it may keep what the one inside does not.
    losses = jax.custom_vjp(of_all)
    losses.defvjp(lambda *arguments: (of_all(*arguments), arguments), backward)
    return losses(head, hidden.swapaxes(0, 1), targets.swapaxes(0, 1)).swapaxes(0, 1)
