"""Optimizers by name, what its weight decay applies to, parameters chosen by path, and their moving average."""

import math
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import STACKED
from transformer_jax.setting_groups import TAKEN, OptimizationSettings
from transformer_jax.trees import Arrays, Params

OF_WHOLE_ARRAYS = frozenset(
    {"adafactor", "lamb", "muon"}
)  # optimizers whose update of an element depends on all others
NOT_DECAYED = frozenset({"bias", "scale", "embedding"})  # names of parameters of dense layers, norms, embeddings


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
        return optax.chain(moments, scale_by_learning_rate(schedule))
    decay = optax.add_decayed_weights(weight_decay, mask=decay_mask)
    return optax.chain(moments, decay, scale_by_learning_rate(schedule))


def optimizer_of(settings: OptimizationSettings, schedule: optax.Schedule) -> optax.GradientTransformation:
    """The optimizer that settings name: optax's, with its own defaults of what they do not say.

    Adam and AdamW are `adam`. Weight decay, where the optimizer has one, is multiplied by the learning rate.

    Args:
        settings: `optimizer`, and of `weight_decay`, `adam_b1` and `adam_b2` what it takes.
        schedule: learning rate at a step.
    """
    name = settings.optimizer
    arguments = {argument: getattr(settings, taken) for argument, taken in TAKEN.get(name, {}).items()}
    if name in ("adam", "adamw"):
        return adam(schedule, **arguments)
    if name == "muon":
        return optax.contrib.muon(schedule, **arguments, weight_decay_mask=decay_mask)
    masks = {"mask": decay_mask} if "weight_decay" in arguments else {}
    return getattr(optax, name)(schedule, **arguments, **masks)


def scale_by_learning_rate(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply updates by the negative learning rate.

    Unlike optax's transformation of this name it counts no steps: `update` is told the training's `step`. A wrapper
    must pass that on.
    """

    def update(
        updates: Arrays,
        state: optax.EmptyState,
        params: Arrays | None = None,
        *,
        step: ArrayLike,
        **_: object,
    ) -> tuple[Arrays, optax.EmptyState]:
        rate = -jnp.asarray(schedule(step))
        return jax.tree.map(lambda one: rate.astype(one.dtype) * one, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def decay_mask(params: Params) -> Params:
    """For each parameter whether weight decay applies: not to biases, norms, embeddings and other vectors."""

    def decays(path: tuple[Any, ...], array: Array) -> bool:
        names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
        return NOT_DECAYED.isdisjoint(names[-1:]) and array.ndim - (STACKED in names) > 1

    return jax.tree_util.tree_map_with_path(decays, params)


def with_frozen(optimizer: optax.GradientTransformation, patterns: str) -> optax.GradientTransformationExtraArgs:
    """An optimizer that leaves some parameters as they are, and has no state for them.

    The optimizer inside sees the others alone: neither its decay nor its norms touch the frozen ones.

    Args:
        optimizer: of the others.
        patterns: of the frozen parameters' paths, see `matching`.

    Raises:
        InputError: when its `init` is called, if a pattern matches no parameter, or the patterns match all.
    """

    def labels(params: Params) -> Params:
        return jax.tree.map(lambda frozen: "frozen" if frozen else "trained", frozen_mask(params, patterns))

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def frozen_mask(params: Params, patterns: str) -> Params:
    """For each parameter whether `patterns` freeze it.

    Raises:
        InputError: a pattern matches no parameter, or the patterns match all.
    """
    paths = flatten_dict(params, sep="/")
    frozen = matching(patterns, paths.keys(), "freeze")
    if len(frozen) == len(paths):
        raise InputError(f"freeze is {patterns}, which is the whole model; something must be left to train")
    return unflatten_dict({path: path in frozen for path in paths}, sep="/")


def stop_frozen(params: Params, patterns: str) -> Params:
    """The same parameters; a gradient with respect to the frozen ones is zero, and is not computed."""
    mask = frozen_mask(params, patterns)
    return jax.tree.map(lambda a, frozen: jax.lax.stop_gradient(a) if frozen else a, params, mask)


class AveragedState(NamedTuple):
    """State of an optimizer `with_average`."""

    inner: optax.OptState  # of the optimizer itself
    average: Arrays  # of the parameters


def with_average(optimizer: optax.GradientTransformation, decay: float) -> optax.GradientTransformationExtraArgs:
    """An optimizer that also keeps an exponential moving average θ̄ of the parameters θ (Polyak and Juditsky 1992).

    Each update sets θ̄ₜ = θ̄ₜ₋₁ + (1 - β) / (1 - βᵗ) (θₜ - θ̄ₜ₋₁), with the decay β and θ̄₁ = θ₁. That is the average with
    the correction of its bias (Kingma and Ba 2015, section 7.2), so that the initial parameters have no part in it.
    The updates are those of the optimizer.

    Args:
        optimizer: that updates the parameters.
        decay: β, between 0 and 1.
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Arrays) -> AveragedState:
        return AveragedState(inner.init(params), jax.tree.map(jnp.copy, params))

    def update(
        updates: Arrays,
        state: AveragedState,
        params: Arrays | None = None,
        *,
        step: ArrayLike,
        **more: object,
    ) -> tuple[Arrays, AveragedState]:
        updates, inner_state = inner.update(updates, state.inner, params, step=step, **more)
        # 1 - βᵗ by expm1: for a β near 1 the subtraction would lose digits.
        rate = math.expm1(math.log(decay)) / jnp.expm1((jnp.asarray(step) + 1) * math.log(decay))

        def averaged(average: Array, new: Array) -> Array:
            return average + rate.astype(new.dtype) * (new - average)

        new = optax.apply_updates(params, updates)
        return updates, AveragedState(inner_state, jax.tree.map(averaged, state.average, new))

    return optax.GradientTransformationExtraArgs(init, update)


def matching(patterns: str, paths: Collection[str], setting: str) -> frozenset[str]:
    """The paths that patterns choose.

    A pattern is the path of an array, or of a module for all arrays in it. In it `*` stands for any text, slashes
    included, `?` for one character and `[…]` for one of those in the brackets.

    Args:
        patterns: separated by commas.
        paths: of the model's arrays.
        setting: that holds the patterns, for the error.

    Raises:
        InputError: a pattern chooses no array.
    """
    chosen: set[str] = set()
    for pattern in patterns.split(","):
        pattern = pattern.strip()
        found = {path for path in paths if fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")}
        if not found:
            modules = ", ".join(sorted({path.partition("/")[0] for path in paths}))
            raise InputError(f"{setting} has {pattern!r}, which is no array or module of the model, as {modules}")
        chosen |= found
    return frozenset(chosen)
