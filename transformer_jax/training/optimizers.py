"""Optimizers by name, weight-decay masks, frozen parameters, and the moving average of parameters."""

import math
import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import Array
from jax.tree_util import tree_map_with_path
from jax.typing import ArrayLike

from transformer_jax.devices.specs import KeyPath, path_name
from transformer_jax.errors import InputError
from transformer_jax.nn.layer_stacks import STACKED
from transformer_jax.setting_groups import TAKEN, OptimizationSettings
from transformer_jax.trees import VARIABLES, Arrays, Params, join_variables, split_variables

# Optimizers whose update of an element depends on all others, those of other stacked layers too.
OF_WHOLE_ARRAYS = frozenset({"adafactor", "lamb"})
# names of parameters of dense layers, norms, embeddings
NOT_DECAYED = frozenset({"bias", "scale", "embedding"})
# modules that are not hidden layers
FIRST_AND_LAST = frozenset({"input_layer", "patch_layer", "output_layer"})


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


def optimizer_of(
    settings: OptimizationSettings, schedule: optax.Schedule
) -> optax.GradientTransformation:
    """Create optax's optimizer from the settings; arguments without a setting keep optax's defaults.

    Adam and AdamW are `adam`. Weight decay, if the optimizer has it, is multiplied by the learning rate.

    Args:
        settings: `optimizer`, and those of `weight_decay`, `adam_b1` and `adam_b2` that the optimizer takes.
        schedule: learning rate at a step.
    """
    name = settings.optimizer
    arguments = {
        argument: getattr(settings, taken) for argument, taken in TAKEN.get(name, {}).items()
    }
    if name in ("adam", "adamw"):
        return adam(schedule, **arguments)
    if name == "muon":
        masks = {"weight_decay_mask": decay_mask, "muon_weight_dimension_numbers": muon_axes}
        return optax.contrib.muon(schedule, **arguments, **masks)
    if "weight_decay" in arguments:
        arguments["mask"] = decay_mask
    return getattr(optax, name)(schedule, **arguments)


def scale_by_learning_rate(schedule: optax.Schedule) -> optax.GradientTransformationExtraArgs:
    """Multiply updates by the negative learning rate.

    Unlike optax's transformation of this name, it does not count steps: `update` takes the run's `step`, which
    wrappers must pass on.
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
        return jax.tree.map(lambda update: rate.astype(update.dtype) * update, updates), state

    return optax.GradientTransformationExtraArgs(optax.init_empty_state, update)


def decay_mask(params: Params) -> Params:
    """Return for each parameter whether weight decay applies: not to biases, norms, embeddings and other vectors."""

    def decays(path: KeyPath, array: ArrayLike) -> bool:
        names = path_name(path).split("/")
        return NOT_DECAYED.isdisjoint(names[-1:]) and jnp.ndim(array) - (STACKED in names) > 1

    return tree_map_with_path(decays, params)


def muon_axes(params: Params) -> Any:  # a tree of axes and None
    """Return for each parameter the axes of its matrix if Muon updates it, or None if Adam does.

    Muon is for the matrices of hidden layers (Jordan et al. 2024), here kernels that are not in `FIRST_AND_LAST`. Each
    layer of stacked layers has a matrix of its own.
    """

    def axes(path: KeyPath, array: Array) -> optax.contrib.MuonDimensionNumbers | None:
        names = path_name(path).split("/")
        is_hidden = names[-1:] == ["kernel"] and FIRST_AND_LAST.isdisjoint(names)
        is_matrix = array.ndim - (STACKED in names) == 2
        return optax.contrib.MuonDimensionNumbers(-2, -1) if is_hidden and is_matrix else None

    return tree_map_with_path(axes, params)


def with_frozen(
    optimizer: optax.GradientTransformation, patterns: str
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer so that some parameters are frozen, without optimizer state.

    The inner optimizer gets only the other parameters: its weight decay and norms exclude the frozen ones.

    Args:
        optimizer: updates the parameters that are not frozen.
        patterns: patterns of the frozen parameters' paths, see `matching`.

    Raises:
        InputError: when `init` is called, if a pattern matches no parameter, or the patterns match all parameters.
    """

    def labels(params: Params) -> Params:
        paths = flatten_dict(params, sep="/")
        frozen = frozen_paths(paths, patterns)
        labels = dict.fromkeys(paths, "trained") | dict.fromkeys(frozen, "frozen")
        return unflatten_dict(labels, sep="/")

    return optax.partition({"trained": optimizer, "frozen": optax.set_to_zero()}, labels)


def frozen_paths(paths: Collection[str], patterns: str) -> frozenset[str]:
    """Return the paths of the parameters that `patterns` freeze.

    Raises:
        InputError: a pattern matches no parameter, or the patterns match all parameters.
    """
    frozen = matching(patterns, paths, "freeze")
    if len(frozen) == len(paths):
        raise InputError(
            f"freeze is {patterns}, which is the whole model; leave at least one parameter to train"
        )
    return frozen


def stop_frozen(params: Params, patterns: str) -> Params:
    """Return the same parameters, with `stop_gradient` on the frozen ones: their gradient is 0, and not computed."""
    arrays = flatten_dict(params, sep="/")
    for path in frozen_paths(arrays, patterns):
        arrays[path] = jax.lax.stop_gradient(arrays[path])
    return unflatten_dict(arrays, sep="/")


class AveragedState(NamedTuple):
    """State of an optimizer from `with_average`."""

    inner: optax.OptState  # of the wrapped optimizer
    average: Arrays  # of the parameters


def with_average(
    optimizer: optax.GradientTransformation, decay: float
) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer to keep an exponential moving average θ̄ of the parameters θ (Polyak and Juditsky 1992).

    Each update sets θ̄ₜ = θ̄ₜ₋₁ + (1 - β) / (1 - βᵗ) (θₜ - θ̄ₜ₋₁), with the decay β and θ̄₁ = θ₁. This is the
    bias-corrected average (Kingma and Ba 2015, section 7.2), to which the initial parameters do not contribute. The
    optimizer's updates stay unchanged.

    Args:
        optimizer: updates the parameters.
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
        **extra_arguments: object,
    ) -> tuple[Arrays, AveragedState]:
        updates, inner_state = inner.update(
            updates, state.inner, params, step=step, **extra_arguments
        )
        # 1 - βᵗ by expm1: the subtraction would lose digits for β near 1.
        rate = math.expm1(math.log(decay)) / jnp.expm1((jnp.asarray(step) + 1) * math.log(decay))

        def averaged(average: Array, param: Array) -> Array:
            return average + rate.astype(param.dtype) * (param - average)

        new_params = optax.apply_updates(params, updates)
        average = jax.tree.map(averaged, state.average, new_params)
        return updates, AveragedState(inner_state, average)

    return optax.GradientTransformationExtraArgs(init, update)


def average_of(state: Any) -> Params:  # of a `TrainState`
    """The moving average of the parameters, if the optimizer is from `with_average`."""
    return join_variables(state.opt_state.average, split_variables(state.params)[1])


def matches(path: str, pattern: str) -> bool:
    """Whether an array, by its path, is selected by a pattern of its path or of the path of a module."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"{pattern}/*")


def matching(patterns: str, paths: Collection[str], setting: str) -> frozenset[str]:
    """Return the paths that match at least one of the patterns.

    A pattern is the path of an array, or of a module, which selects all of its arrays. `*` matches any text including
    slashes, `?` one character, and `[…]` one of the characters in the brackets.

    Args:
        patterns: separated by commas.
        paths: of the model's arrays.
        setting: name of the setting with the patterns, for the error.

    Raises:
        InputError: a pattern matches no array.
    """
    # Running averages of a module, `variables/batch_stats/encoder/…`, are chosen with it.
    names = {path: re.sub(f"^{VARIABLES}/[^/]+/", "", path) for path in paths}
    chosen: set[str] = set()
    for pattern in patterns.split(","):
        pattern = pattern.strip()
        matched = {path for path, name in names.items() if matches(name, pattern)}
        if not matched:
            modules = ", ".join(sorted({name.partition("/")[0] for name in names.values()}))
            raise InputError(
                f"{setting} has {pattern!r}, which is no array or module of the model; modules:"
                f" {modules}"
            )
        chosen |= matched
    return frozenset(chosen)
