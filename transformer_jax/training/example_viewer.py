"""Name under which annotations of `inspection` have `TrainerModule`."""

from transformer_jax.training.trainer import TrainerModule as ExampleViewer

__all__ = ["ExampleViewer"]
