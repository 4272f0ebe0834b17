"""A user-defined task in a separate file: predict the largest of five numbers at the last position."""

import dataclasses

import jax
import numpy as np
import optax

from transformer_jax import TaskData, TrainerModule, TrainingConfig, TransformerPredictor, block_settings, make_loader
from transformer_jax.data import ArrayDataset


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargestConfig(TrainingConfig):
    """Settings of a tiny model and a short training."""

    model_dim: int = 6
    warmup: int = 1
    batch_size: int = 7
    max_epochs: int = 1


def largest_data(config: LargestConfig) -> TaskData:
    """Numbers below seven, and the largest of each row."""
    rows = np.random.default_rng(1).integers(7, size=(3, 17, 5)).astype(np.int32)
    train, val, test = (ArrayDataset(part, part.max(-1)) for part in rows)
    return TaskData(make_loader(train, 7, drop_last=True), make_loader(val, 7), make_loader(test, 7))


class LargestTrainer(TrainerModule):
    """Trainer without an `examples` hook."""

    name = "LargestTask"
    config_class = LargestConfig
    load_data = staticmethod(largest_data)

    def create_model(self) -> TransformerPredictor:
        return TransformerPredictor(self.config.model_dim, 7, 1, 1, settings=block_settings(self.config, 5))

    def model_inputs(self, inputs):
        return (jax.nn.one_hot(inputs, 7),)

    def loss_function(self, params, batch, key, *, train):
        logits = self.apply(params, batch.inputs, key, train=train)[:, -1]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == batch.targets, 1.0)}

    def predict(self, inputs):
        return self.forward(inputs)[:, -1].argmax(-1)
