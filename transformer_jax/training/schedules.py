"""Learning-rate schedules: functions of the step, which may be a number or a traced array."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError, check_positive, check_sizes
from transformer_jax.training.metrics import Means
from transformer_jax.trees import Arrays

PLATEAU = "reduce_on_plateau"
LEAST_IMPROVEMENT = 1e-4  # relative, as PyTorch's default


def cosine_warmup_schedule(base_lr: float, warmup: int, max_iters: int) -> optax.Schedule:
    """Warm-up times cosine, the product form: `base_lr · ½(1 + cos(π t / max_iters)) · min(1, t / warmup)`.

    It is 0 from `max_iters` on. With `warmup = 0` there is no warm-up.

    Raises:
        InputError: `base_lr` is not a finite number above 0, or `warmup` is negative, or not below `max_iters`.
    """
    _check(base_lr, warmup, max_iters)

    def schedule(step: ArrayLike) -> Array:
        step = jnp.minimum(step, max_iters)
        cosine = 0.5 * (1 + jnp.cos(jnp.pi * step / max_iters))
        return base_lr * cosine * jnp.minimum(1.0, step / warmup if warmup else 1.0)

    return schedule


def warmup_then_cosine_schedule(
    base_lr: float, warmup: int, max_iters: int, min_lr: float = 0.0
) -> optax.Schedule:
    """Linear warm-up from 0 to `base_lr`, then a cosine to `min_lr` at `max_iters`: the trainer's default.

    It is `min_lr` from `max_iters` on. With `warmup = 0` it begins at `base_lr`.

    Raises:
        InputError: `base_lr` is not a finite number above 0; `warmup` is negative, or not below `max_iters`; or
            `min_lr` is negative, or above `base_lr`.
    """
    _check(base_lr, warmup, max_iters)
    if not 0 <= min_lr <= base_lr:
        raise InputError(f"min_lr is {min_lr}; it must be from 0 to base_lr, {base_lr}")
    return optax.warmup_cosine_decay_schedule(
        0.0 if warmup else base_lr, base_lr, warmup, max_iters, min_lr
    )


def noam_schedule(d_model: int, warmup: int = 4000) -> optax.Schedule:
    """The Transformer's: `d_model^-½ · min(t^-½, t · warmup^-1.5)` (Vaswani et al. 2017, equation 3); 0 at t = 0.

    Raises:
        InputError: `d_model` or `warmup` is below 1.
    """
    check_sizes(d_model=d_model, warmup=warmup)

    def schedule(step: ArrayLike) -> Array:
        decay = jnp.maximum(step, 1) ** -0.5  # t = 0 is in the warm-up, but must not divide by it
        return float(d_model**-0.5) * jnp.minimum(decay, jnp.asarray(step) * warmup**-1.5)

    return schedule


def one_cycle_schedule(
    base_lr: float,
    max_iters: int,
    pct_start: float = 0.3,
    div_factor: float = 25.0,
    final_div_factor: float = 1e4,
) -> optax.Schedule:
    """The rate of PyTorch's `OneCycleLR`: a cosine up to `base_lr`, and a cosine down (Smith and Topin 2018).

    It begins at `base_lr / div_factor`, and ends at the last step, `max_iters - 1`, at a `final_div_factor`-th of that.

    Raises:
        InputError: `base_lr` is not a finite number above 0; or the `pct_start * max_iters` steps of the first half are
            not above 1 and below `max_iters`.
    """
    check_positive("base_lr", base_lr)
    peak_step = pct_start * max_iters - 1
    last_step = max_iters - 1
    if not 0 < peak_step < last_step:
        raise InputError(
            f"one cycle of {max_iters} steps cannot rise during {pct_start} of them; this must be more"
            " than one step, and fewer than all"
        )
    # each scale is relative to the rate at the boundary before
    scales = {peak_step: div_factor, last_step: 1 / (div_factor * final_div_factor)}
    first_rate = base_lr / div_factor
    return optax.piecewise_interpolate_schedule("cosine", first_rate, scales)


def _check(base_lr: float, warmup: int, max_iters: int) -> None:
    check_positive("base_lr", base_lr)
    check_sizes(max_iters=max_iters)
    check_sizes(0, warmup=warmup)
    if warmup >= max_iters:
        raise InputError(f"warmup is {warmup}; it must be below {max_iters}, the number of steps")


def _cosine(config: TrainingConfig, num_steps: int) -> optax.Schedule:
    return warmup_then_cosine_schedule(config.lr, config.warmup, num_steps, config.min_lr)


def _constant(config: TrainingConfig, num_steps: int) -> optax.Schedule:
    return optax.warmup_constant_schedule(
        0.0 if config.warmup else config.lr, config.lr, config.warmup
    )


def _inverse_sqrt(config: TrainingConfig, num_steps: int) -> optax.Schedule:
    """The shape of `noam_schedule`, with a peak of `lr`; without warm-up, the peak is at the first two steps."""
    warmup = max(config.warmup, 1)
    first_step = 0 if config.warmup else 1
    noam = noam_schedule(1, warmup)  # its peak is warmup^-½
    return lambda step: config.lr * warmup**0.5 * noam(jnp.maximum(step, first_step))


def _multi_step(config: TrainingConfig, num_steps: int) -> optax.Schedule:
    """The constant schedule, times `lr_factor` from the end of each epoch in `milestones` on."""
    if config.milestones is None or config.max_steps is not None:
        raise InputError(
            f"schedule is multi_step, milestones is {config.milestones}, and max_steps is"
            f" {config.max_steps}; it needs milestones, in epochs, such as 30,80, and max_epochs"
        )
    steps_per_epoch = num_steps // config.max_epochs
    factors: dict[int, float] = {}
    for epoch in config.milestones.split(","):
        step = int(epoch) * steps_per_epoch
        factors[step] = factors.get(step, 1.0) * config.lr_factor
    scale = optax.piecewise_constant_schedule(1.0, factors)
    constant = _constant(config, num_steps)
    return lambda step: constant(step) * scale(step)


Schedules: TypeAlias = Mapping[str, Callable[[Any, int], optax.Schedule]]
# Schedules by the value of the setting `schedule`, made from a run's settings and its number of steps.
SCHEDULES: Schedules = MappingProxyType(
    {
        "cosine": _cosine,
        "noam": lambda config, _: noam_schedule(config.model_dim, config.warmup),
        "inverse_sqrt": _inverse_sqrt,
        "constant": _constant,
        "multi_step": _multi_step,
        "one_cycle": lambda config, num_steps: one_cycle_schedule(config.lr, num_steps),
        PLATEAU: _constant,  # times the scale of a `Plateau`
    }
)


class Plateau(NamedTuple):
    """State of an optimizer whose rate is reduced when evaluations no longer improve: PyTorch's `ReduceLROnPlateau`."""

    plateau_scale: Array  # factor of the learning rate
    best: Array  # value of the metric; NaN before the first evaluation
    num_bad: Array  # evaluations since


def with_plateau(optimizer: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """Wrap an optimizer to scale its updates by a `Plateau`, which `after_evaluation` changes."""

    def init(params: Arrays) -> Plateau:
        return Plateau(jnp.ones(()), jnp.array(jnp.nan), jnp.zeros((), jnp.int32))

    def update(
        updates: Arrays, state: Plateau, params: Arrays | None = None
    ) -> tuple[Arrays, Plateau]:
        scale = state.plateau_scale
        return jax.tree.map(lambda update: scale.astype(update.dtype) * update, updates), state

    return optax.chain(optimizer, optax.GradientTransformation(init, update))


def after_evaluation(
    opt_state: optax.OptState, config: TrainingConfig, metrics: Means
) -> optax.OptState:
    """Update the `Plateau` in an optimizer's state, if there is one, with the metric of `config.criterion`."""
    plateau = optax.tree.get(opt_state, "Plateau")
    if plateau is None:
        return opt_state
    metric, mode = config.criterion
    scale, best, num_bad = map(float, plateau)
    sign = -1 if mode == "max" else 1
    limit = sign * best * (1 - sign * LEAST_IMPROVEMENT)
    if np.isnan(best) or sign * metrics[metric] < limit:
        best = metrics[metric]
        num_bad = 0
    else:
        num_bad += 1
    if num_bad > config.lr_patience:
        scale = max(scale * config.lr_factor, config.min_lr / config.lr)
        num_bad = 0
    arrays = [
        jax.device_put(np.asarray(value, array.dtype), array.sharding)
        for value, array in zip((scale, best, num_bad), plateau, strict=True)
    ]
    return optax.tree.set(opt_state, Plateau=Plateau(*arrays))
