"""The largest of a set of numbers (Lee et al. 2019, *Set Transformer*, table 1): which pooling finds it?

The test metric `loss` is the mean absolute error on newly drawn sets. The defaults are the settings of the authors'
notebook (github.com/juho-lee/set_transformer: 500 steps of 1 024 sets, Adam 1e-4); `--supplement` selects those of the
paper's supplement (20 000 steps of 128 sets, 1e-3).

    python experiments/papers/set_transformer.py --sweep pooling=pma,max,sum,mean --seeds 0..4
"""

import dataclasses
from functools import partial
from typing import Literal

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from presets import FreshConfig, PaperTrainer, fresh, main

from transformer_jax import TaskData, setting
from transformer_jax.attention import dot_product_attention, padding_mask
from transformer_jax.nn import PMA, SAB, BlockSettings, NoNorm, TransformerEncoder

SUPPLEMENT = {
    "steps": 20_000,
    "batch_size": 128,
    "lr": 1e-3,
    "one_length": False,
    "name": "LargestOfASet_supplement",
}
LEAST = {"max": {"initial": -np.inf}}  # `max` with `where` requires an initial value
# PyTorch's default
Dense = partial(nn.Dense, kernel_init=nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform"))
QUICK = {"steps": 7, "batch_size": 32, "test_size": 101}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LargestConfig(FreshConfig):
    """Train a network to name the largest number of a set."""

    # by attention as in the authors' code (pma) or in the paper's equations (equations), or by maximum, sum or mean
    pooling: Literal["pma", "equations", "max", "sum", "mean"] = setting("pma", defines_model=True)
    # whether all sets of a training step have one length, as in the notebook, or each its own
    one_length: bool = True
    model_dim: int = 64  # width of all layers
    num_heads: int = 4  # heads of the attention
    num_layers: int = 2  # self-attention blocks
    batch_size: int = 1024  # sets in one step
    lr: float = 1e-4  # learning rate, from the first step to the last


def sets_of(config: LargestConfig) -> TaskData:
    """Zero-padded sets of 1 to 10 integers from 1 to 99, and their maxima; redrawn for each step and split."""

    def draw(
        rng: np.random.Generator, size: int, is_training: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        of_one_length = config.batch_size if config.one_length and is_training else 1
        lengths = rng.integers(1, 11, (size // of_one_length, 1)).repeat(of_one_length, 0)
        # [N T]
        sets = np.where(np.arange(10) < lengths, rng.integers(1, 100, (size, 10)), 0).astype(
            np.float32
        )
        return sets, sets.max(-1)

    return fresh(config, draw)


class AuthorsMAB(nn.Module):
    """MAB of the authors' code: `H + relu(H W + b)` with `H = X W_q + heads(X, Y)` and logits divided by √D."""

    num_heads: int

    @nn.compact
    def __call__(self, x, memory, mask, width):
        q, k, v = (
            Dense(width)(each).reshape(*each.shape[:2], self.num_heads, -1)
            for each in (x, memory, memory)
        )
        scaled = q / self.num_heads**0.5  # dot_product_attention divides by √(D / H)
        heads = dot_product_attention(
            *(each.swapaxes(1, 2) for each in (scaled, k, v)), mask
        ).swapaxes(1, 2)
        h = (q + heads).reshape(*x.shape[:2], width)
        return h + nn.relu(Dense(width)(h))


class LargestModel(nn.Module):
    """Networks of the notebook: `SAB, SAB, PMA`, or dense layers on each number, pooling, and dense layers."""

    pooling: str
    sizes: tuple[int, int, int]  # L, D, H

    @nn.compact
    def __call__(self, numbers, *, train: bool = False):
        # [B T 1]
        (depth, width, num_heads), mask, x = (
            self.sizes,
            padding_mask(numbers > 0),
            numbers[..., None],
        )
        if self.pooling == "pma":
            for _ in range(depth):
                x = AuthorsMAB(num_heads)(x, x, mask, width)
            seed = self.param("seed", nn.initializers.xavier_uniform(), (1, width))
            x = AuthorsMAB(num_heads)(jnp.broadcast_to(seed, (len(x), 1, width)), x, mask, width)
            return Dense(1)(x)[:, 0, 0]
        x = Dense(width)(x)
        if self.pooling == "equations":
            sizes, settings = (width, num_heads, width), BlockSettings(norm=NoNorm)
            x = TransformerEncoder(depth, *sizes, settings=settings, block=SAB)(
                x, mask, train=train
            )
            return Dense(1)(PMA(*sizes, settings=settings)(x, mask, train=train))[:, 0, 0]
        for _ in range(3):
            x = Dense(width)(nn.relu(x))
        x = getattr(jnp, self.pooling)(
            x, 1, where=numbers[..., None] > 0, **LEAST.get(self.pooling, {})
        )
        return Dense(1)(nn.relu(Dense(width)(x)))[:, 0]


class LargestTrainer(PaperTrainer):
    name = "LargestOfASet"
    config_class = LargestConfig
    load_data = staticmethod(sets_of)

    def create_model(self):
        c = self.config
        return LargestModel(c.pooling, (c.num_layers, c.model_dim, c.num_heads))

    def loss_function(self, params, batch, key, *, train):
        return {
            "loss": (
                jnp.abs(self.apply(params, batch.inputs, key, train=train) - batch.targets),
                1.0,
            )
        }


if __name__ == "__main__":
    main(LargestTrainer, {"supplement": SUPPLEMENT, "quick": QUICK})
