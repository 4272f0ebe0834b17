"""The largest of a set of numbers (Lee et al. 2019, *Set Transformer*, table 1): which pooling finds it?

The test metric `loss` is the mean absolute error on fresh sets. The default setting is that of the authors' notebook
(500 steps of 1 024 sets, Adam 1e-4), `--supplement` that of the paper's supplement (20 000 steps of 128 sets, 1e-3).

    python experiments/papers/set_transformer.py --sweep pooling=pma,max,sum,mean --seeds 0..4
"""

import dataclasses
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from transformer_jax import (
    BlockSettings,
    TaskData,
    TrainerModule,
    TrainingConfig,
    TransformerEncoder,
    make_loader,
    padding_mask,
    run,
    setting,
    train_and_test,
)
from transformer_jax.cli import parse, parse_known
from transformer_jax.data import ArrayDataset
from transformer_jax.nn import PMA, SAB, NoNorm

SUPPLEMENT = {"steps": 20_000, "batch_size": 128, "lr": 1e-3, "name": "LargestOfASet_supplement"}
QUICK = {"steps": 7, "batch_size": 32, "test_size": 101}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargestConfig(TrainingConfig):
    """Train a network to name the largest number of a set."""

    # how a set becomes one vector: by attention after self-attention (pma), or by a maximum, sum or mean
    pooling: Literal["pma", "max", "sum", "mean"] = setting("pma", of_model=True)
    steps: int = setting(500, least=1)  # of training, each with sets of its own
    test_size: int = setting(10_000, least=1)  # sets of validation, and of test
    model_dim: int = 64  # width of all layers
    num_heads: int = 4  # heads of the attention
    num_layers: int = 2  # self-attention blocks
    batch_size: int = 1024  # sets in one step
    lr: float = 1e-4  # learning rate
    schedule: str = "constant"  # of the learning rate
    warmup: int = 0  # steps in which the learning rate rises
    gradient_clip: float | None = None  # largest norm of the gradient
    max_epochs: int = 1  # passes over the sets, which are as many as all steps need


def sets_of(config: LargestConfig) -> TaskData:
    """Sets of 1 to 10 integers from 1 to 99, padded with zeros, and their largest, fresh for each step and split."""
    loaders = []
    for split, size in enumerate((config.steps * config.batch_size, config.test_size, config.test_size)):
        rng = np.random.default_rng([config.seed, split])
        lengths, numbers = rng.integers(1, 11, (size, 1)), rng.integers(1, 100, (size, 10))
        sets = np.where(np.arange(10) < lengths, numbers, 0).astype(np.float32)  # [N T]
        loaders.append(make_loader(ArrayDataset(sets, sets.max(-1)), config.batch_size))
    return TaskData(*loaders)


class LargestModel(nn.Module):
    """The notebook's networks: `SAB, SAB, PMA`, or layers for each number, a pooling, and layers after it."""

    pooling: str
    sizes: tuple[int, int, int]  # L, D, H

    @nn.compact
    def __call__(self, numbers, *, train: bool = False):
        depth, width, num_heads = self.sizes
        valid, x = numbers > 0, nn.Dense(width)(numbers[..., None])  # [B T], [B T D]
        if self.pooling == "pma":
            sizes, settings, mask = (width, num_heads, width), BlockSettings(norm=NoNorm), padding_mask(valid)
            x = TransformerEncoder(depth, *sizes, settings=settings, block=SAB)(x, mask, train=train)
            return nn.Dense(1)(PMA(*sizes, settings=settings)(x, mask, train=train))[:, 0, 0]
        for _ in range(3):
            x = nn.Dense(width)(nn.relu(x))
        if self.pooling == "max":
            x = jnp.where(valid[..., None], x, -jnp.inf).max(1)
        else:
            x = jnp.where(valid[..., None], x, 0).sum(1)
            x = x / valid.sum(1, keepdims=True) if self.pooling == "mean" else x
        return nn.Dense(1)(nn.relu(nn.Dense(width)(x)))[:, 0]


class LargestTrainer(TrainerModule):
    name = "LargestOfASet"
    config_class = LargestConfig
    load_data = staticmethod(sets_of)
    writes_predictions, attention_picture = False, None  # of numbers without labels

    def create_model(self):
        sizes = self.config.num_layers, self.config.model_dim, self.config.num_heads
        return LargestModel(self.config.pooling, sizes)

    def model_inputs(self, inputs):
        return (inputs,)

    def loss_function(self, params, batch, key, *, train):
        return {"loss": (jnp.abs(self.apply(params, batch.inputs, key, train=train) - batch.targets), 1.0)}


@dataclasses.dataclass(frozen=True)
class Setting:
    supplement: bool = False  # the supplement's steps, batch and learning rate
    quick: bool = False  # a few steps, to see that all works


def read_config(arguments: list[str]) -> LargestConfig:
    chosen, others = parse_known(Setting(), arguments)
    default = LargestConfig(**((SUPPLEMENT if chosen.supplement else {}) | (QUICK if chosen.quick else {})))
    return parse(LargestConfig, others, default=default, task=LargestTrainer.name, choices=Setting)


if __name__ == "__main__":
    run(read_config, lambda config: train_and_test(LargestTrainer, config, sets_of))
