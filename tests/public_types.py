"""Types of the public names; `make types` checks this file, which is never run."""

from typing import Any, assert_type

from transformer_jax import TrainerModule, TrainingConfig, TransformerPredictor, load_run, train_anomaly, train_reverse
from transformer_jax.cli import parse
from transformer_jax.tasks import AnomalyTrainer, ReverseConfig, ReverseTrainer

assert_type(load_run("x"), TrainerModule)
assert_type(load_run("x").config, TrainingConfig)
assert_type(train_reverse(max_epochs=1), tuple[ReverseTrainer, dict[str, Any]])
assert_type(TransformerPredictor(model_dim=7, num_classes=3, num_heads=1, num_layers=2), TransformerPredictor)
assert_type(train_anomaly()[0], AnomalyTrainer)
assert_type(parse(ReverseConfig, []), ReverseConfig)
from transformer_jax import train_reverses  # type: ignore[attr-defined]  # noqa: E402, F401
