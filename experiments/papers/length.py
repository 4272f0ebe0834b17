"""Induction heads and length (Gu and Dao 2023, *Mamba*, table 11): which kinds of positions work on longer sequences?

The last of the 16 tokens is special: it occurs once at a random position and again at the end, where the model must
predict the token that followed its first occurrence. `results.json` contains `by_length`, the accuracy at lengths that
are powers of 2, from 64 on.

    python experiments/papers/length.py --sweep positions=learned,sinusoidal,rotary,alibi,relative,none --seeds 0..4
"""

import dataclasses
from typing import Any

import numpy as np
from presets import FreshConfig, PaperTrainer, fresh, main, token_elements

from transformer_jax import TaskData, block_settings, make_loader, setting
from transformer_jax.data import ArrayDataset
from transformer_jax.nn import TransformerLM
from transformer_jax.setting_groups import Positions

VOCABULARY, SPECIAL = 16, 15
SMALL = {
    "seq_len": 64,
    "longest": 1024,
    "model_dim": 64,
    "batch_size": 32,
    "lr": 1e-3,
    "steps": 3000,
}
SMALL |= {"name": "InductionByLength_small"}
QUICK = {
    "seq_len": 16,
    "longest": 128,
    "model_dim": 16,
    "num_heads": 2,
    "steps": 7,
    "test_size": 11,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LengthConfig(FreshConfig):
    """Train a Transformer to find the token that followed an earlier one, and test it on longer sequences."""

    seq_len: int = setting(256, defines_model=True, least=4)  # tokens in a sequence of the training
    # tokens in the longest sequence that is tested
    longest: int = setting(2**14, defines_model=True, least=64)
    positions: Positions = "learned"
    model_dim: int = 128  # width of the model; the feed-forward is four times as wide
    num_heads: int = 4  # attention heads
    num_layers: int = 2  # blocks
    norm_first: bool = True  # norms before the sub-layers
    # training steps; the paper has 409 600 steps for positions that are not absolute
    steps: int = setting(204_800, least=1)
    batch_size: int = 8  # sequences in one step
    lr: float = 2e-4  # learning rate
    test_size: int = setting(1_000, least=1)  # sequences of each length


def sequences(rng: np.random.Generator, size: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens `[N, T]`, with the special token at a random position and at the end, and the answers `[N]`."""
    tokens, rows = rng.integers(SPECIAL, size=(size, length), dtype=np.int8), np.arange(size)
    places = rng.integers(length - 2, size=size)
    tokens[rows, places] = tokens[:, -1] = SPECIAL
    return tokens, tokens[rows, places + 1].astype(np.int32)


class LengthTrainer(PaperTrainer):
    name = "InductionByLength"
    config_class = LengthConfig
    load_data = staticmethod(
        lambda c: fresh(c, lambda rng, size, _: sequences(rng, size, c.seq_len))
    )

    def create_model(self):
        c = self.config
        sizes, settings = (
            (c.model_dim, c.num_heads, c.num_layers, 4 * c.model_dim),
            block_settings(c, c.longest),
        )
        return TransformerLM(
            VOCABULARY, *sizes, settings=settings, tie_embeddings=False, max_len=c.longest
        )

    def loss_function(self, params, batch, key, *, train):
        return token_elements(
            self.apply(params, batch.inputs, key, train=train)[:, -1], batch.targets
        )


def by_length(trainer: LengthTrainer, data: TaskData) -> dict[str, Any]:
    """Accuracy on fresh sequences of 64, 128, … tokens."""
    rng, found = np.random.default_rng([trainer.config.seed, 3]), dict[str, float]()
    for length in (2**power for power in range(6, trainer.config.longest.bit_length())):
        samples = ArrayDataset(*sequences(rng, trainer.config.test_size, length))
        found[str(length)] = trainer.evaluate(make_loader(samples, trainer.config.batch_size))[
            "accuracy"
        ]
    return {"by_length": found}


if __name__ == "__main__":
    main(LengthTrainer, {"small": SMALL, "quick": QUICK}, by_length)
