"""Learning-rate schedules: functions of the step, which may be a number or a traced array."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import jax.numpy as jnp
import optax
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError, check_positive, check_sizes


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
    warmup, first = max(config.warmup, 1), 0 if config.warmup else 1
    papers = noam_schedule(1, warmup)
    return lambda step: config.lr * warmup**0.5 * papers(jnp.maximum(step, first))


# Schedules by the value of the setting `schedule`, made from a run's settings and its number of steps.
SCHEDULES: Mapping[str, Callable[[TrainingConfig, int], optax.Schedule]] = MappingProxyType(
    {
        "cosine": _cosine,
        "noam": lambda config, _: noam_schedule(config.model_dim, config.warmup),
        "inverse_sqrt": _inverse_sqrt,
        "constant": _constant,
    }
)
