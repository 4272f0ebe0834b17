"""Grokking of modular addition (Nanda et al. 2023, *Progress measures for grokking*, sections 3 to 5).

One block without norms learns (a + b) mod p from 30 % of the pairs: first by heart, then by a few frequencies. The log
has the curves; `results.json` the `spectrum`, the share of the embedding's squared norm at each frequency, and the loss
on all pairs with the five `key_frequencies`, which hold most of it, removed from the embedding, or all others.

    python experiments/papers/grokking.py --seeds 0..4
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax import BlockSettings, LearnedPositions, TaskData, TrainerModule, TrainingConfig, TransformerLM, run
from transformer_jax.cli import parse, parse_known
from transformer_jax.data import ArrayDataset, make_loader
from transformer_jax.fields import setting
from transformer_jax.nn import NoNorm
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.tasks import train_and_test

SMALL = {"modulus": 59, "share": 0.4, "max_epochs": 5_000, "name": "Grokking_small"}
QUICK = {"max_epochs": 7, "modulus": 11, "eval_every": 7, "model_dim": 16, "num_heads": 2}
NUM_KEYS = 5  # frequencies that the paper finds in its model


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrokkingConfig(TrainingConfig):
    """Train a Transformer to add numbers modulo a prime."""

    modulus: int = setting(113, of_model=True, least=3)  # p
    share: float = 0.3  # of all pairs that the training set has
    model_dim: int = 128  # width of the model; the feed-forward is four times as wide
    num_heads: int = 4  # attention heads
    batch_size: int = 2**14  # more than there are pairs: all of them in each step
    max_epochs: int = 14_000  # steps, since each sees all pairs
    lr: float = 1e-3  # learning rate
    schedule: str = "constant"  # of the learning rate
    warmup: int = 10  # steps in which the learning rate rises
    weight_decay: float = 1.0  # of all parameters, as in the paper
    adam_b2: float = 0.98  # decay rate of Adam's mean of the squared gradients
    gradient_clip: float | None = None  # largest norm of the gradient
    best_by: str | None = "val/loss:min"  # which model is examined
    eval_every: int = 100  # epochs between evaluations
    logger: str = "tensorboard,csv"  # where curves go


def pairs(config: GrokkingConfig) -> TaskData:
    """Prompts a b = with the target (a + b) mod p: a random part of them, the others, and all."""
    p = config.modulus
    a, b = np.divmod(np.arange(p * p), p)
    tokens, sums = np.stack([a, b, np.full_like(a, p)], 1).astype(np.int32), ((a + b) % p).astype(np.int32)
    chosen, others = np.split(np.random.default_rng(config.seed).permutation(p * p), [int(config.share * p * p)])
    sets = [ArrayDataset(tokens[rows], sums[rows]) for rows in (chosen, others, np.arange(p * p))]
    return TaskData(*(make_loader(one, min(config.batch_size, len(one))) for one in sets))


class GrokkingTrainer(TrainerModule):
    name = "Grokking"
    config_class = GrokkingConfig
    load_data = staticmethod(pairs)
    writes_predictions, attention_picture = False, None  # the examples are no sequences of answers

    def create_model(self):
        c, width = self.config, self.config.model_dim
        sizes = c.modulus + 1, width, c.num_heads, c.num_layers, 4 * width
        return TransformerLM(
            *sizes,
            settings=BlockSettings(norm=NoNorm, positions=LearnedPositions(3)),
            tie_embeddings=False,
            embeddings=EmbeddingSettings(is_scaled=False, output_bias=False),
        )

    def model_inputs(self, inputs):
        return (inputs,)

    def create_optimizer(self, num_steps):
        c = self.config
        return optax.adamw(self.create_schedule(num_steps), c.adam_b1, c.adam_b2, weight_decay=c.weight_decay)

    def loss_function(self, params, batch, key, *, train):
        logits = self.apply(params, batch.inputs, key, train=train)[:, -1, : self.config.modulus]  # [B p]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == batch.targets, 1.0)}


def spectrum_and_ablations(trainer: GrokkingTrainer, data: TaskData) -> dict[str, Any]:
    """Which frequencies the embedding has, and what the model's loss is without them or with them alone."""
    p, table = trainer.config.modulus, np.asarray(trainer.params["embedding"]["embedding"])
    waves = np.fft.rfft(table[:p], axis=0)  # [(p + 1) / 2, D]
    powers = (abs(waves[1:]) ** 2).sum(-1)
    keys = 1 + np.argsort(-powers)[:NUM_KEYS]
    is_key = np.isin(np.arange(len(waves)), keys)
    results = {"spectrum": (powers / powers.sum()).tolist(), "key_frequencies": sorted(keys.tolist())}
    results["key_share"] = float(powers[keys - 1].sum() / powers.sum())
    for name, kept in {"without_keys": ~is_key, "keys_alone": is_key | (np.arange(len(waves)) == 0)}.items():
        changed = table.copy()
        changed[:p] = np.fft.irfft(waves * kept[:, None], p, axis=0)
        params = {**trainer.params, "embedding": {"embedding": jnp.asarray(changed)}}
        results[name] = trainer.evaluate(data.test_loader, params)
    return results


@dataclasses.dataclass(frozen=True)
class Setting:
    small: bool = False  # a smaller modulus, more of the pairs and fewer epochs, for minutes on a CPU
    quick: bool = False  # a small model and a few steps, to see that all works


def read_config(arguments: list[str]) -> GrokkingConfig:
    chosen, others = parse_known(Setting(), arguments)
    default = GrokkingConfig(**((SMALL if chosen.small else {}) | (QUICK if chosen.quick else {})))
    return parse(GrokkingConfig, others, default=default, task=GrokkingTrainer.name, choices=Setting)


if __name__ == "__main__":
    run(read_config, lambda config: train_and_test(GrokkingTrainer, config, pairs, spectrum_and_ablations))
