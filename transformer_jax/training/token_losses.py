"""Cross-entropy of tokens, with label smoothing; large logits are computed for a few positions at a time."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike
from jaxtyping import Float, Int, PRNGKeyArray

from transformer_jax.mesh_axis import num_parts_by_xla
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.training.task import Task
from transformer_jax.trees import Inputs, Params

LARGEST = 2**28  # bytes of logits in float32 that a device holds at once, if its memory is unknown
SHARE = 8  # otherwise, this part of its memory: an eighth


def largest_logits() -> int:
    """Bytes of logits in float32 that a device holds at once."""
    memory = jax.local_devices()[0].memory_stats() or {}
    return int(memory.get("bytes_limit", SHARE * LARGEST)) // SHARE


def cross_entropy(
    logits: Float[ArrayLike, "*rows V"],
    targets: Int[ArrayLike, "*rows"],
    label_smoothing: float = 0.0,
) -> Float[Array, "*rows"]:
    """Cross-entropy of each target, as `torch.nn.CrossEntropyLoss(reduction="none", label_smoothing=ε)`.

    With label smoothing ε (Szegedy et al. 2016, section 7) the target has the probability 1 - ε, and all V tokens share
    ε: `-(1 - ε) log p(target) - ε / V Σᵥ log p(v)`.

    Args:
        logits: of each position.
        targets: token ids; negative ids count as 0, and must be excluded by a weight of 0.
        label_smoothing: ε, from 0 to 1.
    """
    logits = jnp.asarray(logits)
    targets = jnp.maximum(targets, 0)
    log_normalizers = jax.nn.logsumexp(logits, -1)
    losses = log_normalizers - _logits_of(targets, logits)
    if label_smoothing == 0:
        return losses
    mean_loss_of_tokens = log_normalizers - jnp.mean(logits, -1)
    return (1 - label_smoothing) * losses + label_smoothing * mean_loss_of_tokens


def _logits_of(
    targets: Int[Array, "*rows"], logits: Float[Array, "*rows V"]
) -> Float[Array, "*rows"]:
    if jax.default_backend() == "cpu":
        return jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    # The gradient of an index is scattered into all logits, in float32 and in a pass of its own. That of this sum is
    # computed where the gradient of the logits is written: a tenth of a GPT-2's step on an H200.
    is_target = jnp.arange(logits.shape[-1]) == targets[..., None]
    logits_of_targets = jnp.sum(jnp.where(is_target, logits, 0), -1)
    # NaN for an id outside the vocabulary, as `take_along_axis` gives
    return jnp.where(targets < logits.shape[-1], logits_of_targets, jnp.nan)


def cross_entropies(
    logits: Float[ArrayLike, "*rows V"],
    targets: Int[ArrayLike, "*rows"],
    label_smoothing: float = 0.0,
) -> dict[str, Float[Array, "*rows"]]:
    """Return the `loss` of each target, and with label smoothing also the `cross_entropy` without it.

    The arguments are those of `cross_entropy`.
    """
    losses = {"loss": cross_entropy(logits, targets, label_smoothing)}
    if label_smoothing:
        losses["cross_entropy"] = cross_entropy(logits, targets)
    return losses


def token_losses(
    task: Task,
    params: Params,
    tokens: Inputs,
    targets: Int[ArrayLike, "B T"],
    key: PRNGKeyArray | None,
    *,
    train: bool,
    of_logits: Callable[[Array, Array], Any] = cross_entropy,
) -> Any:  # what `of_logits` returns
    """Compute the cross-entropy of each target `[B T]`, for a `loss_function`.

    If the logits of all positions would exceed an eighth of a device's memory (on a CPU 256 MiB), a `TransformerLM`
    computes them for a few positions at a time, and again in the backward pass: 2 D V more FLOPs for each token.
    Results differ by rounding. (A subclass may compute its logits differently, so all of them are computed at once.)

    Args:
        task: the task of the model.
        params: of the model.
        tokens: inputs of the model's call, from `prepare`.
        targets: token ids; negative ids count as 0, and must be excluded by a weight of 0.
        key: for dropout; None if `train` is False.
        train: whether dropout is applied.
        of_logits: computes losses, or a PyTree of such arrays, from logits `[*rows V]` and targets `[*rows]`.
    """
    model = task.model
    targets = jnp.asarray(targets)
    if type(model) is TransformerLM:
        rows_of_device = -(-len(targets) // num_parts_by_xla.get())
        bytes_of_position = 4 * rows_of_device * model.vocabulary_size
        num_positions = max(1, largest_logits() // bytes_of_position)
        if num_positions < targets.shape[1]:
            hidden = task.apply(params, tokens, key, train=train, method="hidden_states")
            head = {name: params[name] for name in model.output_params}
            return _in_parts(task, head, hidden, targets, num_positions, of_logits)
    return of_logits(task.apply(params, tokens, key, train=train), targets)


def _in_parts(
    task: Task,
    head: Params,
    hidden: Float[Array, "B T D"],
    targets: Int[Array, "B T"],
    num_positions: int,
    of_logits: Callable[[Array, Array], Any],
) -> Any:  # of arrays [B T]
    """Compute the losses of `num_positions` positions at a time, by the parameters of the model's head."""

    @jax.checkpoint
    # returns arrays [B]
    def losses_at(head: Params, hidden: Float[Array, "B D"], targets: Int[Array, " B"]) -> Any:
        # Parameters are cast in here, so that their gradients are summed over the parts in float32.
        logits = task.call_model(head, (hidden[:, None],), method="project")
        return of_logits(logits[:, 0], targets)

    # returns arrays [T B]
    def all_losses(head: Params, hidden: Float[Array, "T B D"], targets: Int[Array, "T B"]) -> Any:
        return jax.lax.map(
            lambda position: losses_at(head, *position),
            (hidden, targets),
            batch_size=num_positions,
        )

    def forward(*arguments: Any) -> tuple[Any, Any]:  # those of `all_losses`
        return all_losses(*arguments), arguments

    def backward(arguments: Any, cotangent: Any) -> tuple[Any, ...]:
        head, hidden, targets = arguments
        _, pull_back = jax.vjp(lambda head, hidden: all_losses(head, hidden, targets), head, hidden)
        return *pull_back(cotangent), None

    # A custom VJP, since the policy of a `jax.checkpoint` around it may save what the inner one does not.
    losses = jax.custom_vjp(all_losses)
    losses.defvjp(forward, backward)
    by_position = losses(head, hidden.swapaxes(0, 1), targets.swapaxes(0, 1))
    return jax.tree.map(lambda array: array.swapaxes(0, 1), by_position)
