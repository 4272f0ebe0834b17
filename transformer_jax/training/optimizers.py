"""The default optimizer, and the parameters that its weight decay applies to."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.trees import Arrays, Params

NOT_DECAYED = frozenset({"bias", "scale", "embedding"})  # names of parameters of dense layers, norms, embeddings


class Elementwise(optax.GradientTransformationExtraArgs):  # type: ignore[misc]  # optax brings no types
    """An optimizer whose update of an element depends on no other element, nor on the parameters' names and shapes.

    It tells the strategy of parallelism that it may join small arrays; nothing else depends on it.
    """


def adam(
    schedule: optax.Schedule, *, b1: float = 0.9, b2: float = 0.999, weight_decay: float = 0.0
) -> optax.GradientTransformationExtraArgs:
    """Adam (Kingma and Ba 2015), with decoupled weight decay (Loshchilov and Hutter 2019, algorithm 2).

    The decay is multiplied by the learning rate. `decay_mask` says which parameters decay.

    Args:
        schedule: learning rate at a step.
        b1: decay rate of the mean of the gradients.
        b2: decay rate of the mean of their squares.
        weight_decay: factor of the decay.
    """
    moments = optax.scale_by_adam(b1, b2)
    if weight_decay == 0:
        return Elementwise(*optax.chain(moments, scale_by_learning_rate(schedule)))
    decay = optax.add_decayed_weights(weight_decay, mask=decay_mask)
    return optax.chain(moments, decay, scale_by_learning_rate(schedule))


def scale_by_learning_rate(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply updates by the negative learning rate.

    Unlike optax's transformation of this name it counts no steps: `update` is told the training's `step`.
    """

    def update(
        updates: Arrays,
        state: optax.EmptyState,
        params: Arrays | None = None,
        *,
        step: ArrayLike | None = None,
        **_: Any,
    ) -> tuple[Arrays, optax.EmptyState]:
        if step is None:
            raise TypeError(
                "the default optimizer is told the training's step, and its wrapper does not pass that on; "
                "wrap an optimizer of optax's own, with create_schedule as its learning rate"
            )
        rate = -jnp.asarray(schedule(step))
        return jax.tree.map(lambda one: rate.astype(one.dtype) * one, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def decay_mask(params: Params) -> Params:
    """For each parameter whether weight decay applies: not to biases, norms, embeddings and other vectors."""

    def decays(path: tuple[Any, ...], array: Array) -> bool:
        names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        return NOT_DECAYED.isdisjoint(names[-1:]) and array.ndim > 1

    mask: Params = jax.tree_util.tree_map_with_path(decays, params)
    return mask
