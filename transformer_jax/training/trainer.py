"""The module of `TrainerModule` in earlier versions."""

from transformer_jax.fit.trainer import TrainerModule as TrainerModule
