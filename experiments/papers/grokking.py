"""Grokking of modular addition (Nanda et al. 2023, *Progress measures for grokking*, sections 3 to 5).

One block without norms learns (a + b) mod p from 30 % of the pairs: first by heart, then by a few frequencies. The
paper's epoch is one step on all these pairs; 100 of them are an epoch here. `results.json` has the `curves`; when the
pairs were `memorized` and when the rule was found (`generalized`); the `spectrum`, the share of the embedding's squared
norm at each frequency; and the loss on all pairs without its `key_frequencies`, or with them alone.

    python experiments/papers/grokking.py --seeds 0..4
"""

import csv
import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from transformer_jax import BlockSettings, LearnedPositions, TaskData, TrainerModule, TrainingConfig, run
from transformer_jax.cli import parse, parse_known
from transformer_jax.data import ArrayDataset, make_loader
from transformer_jax.fields import setting
from transformer_jax.nn import MAB, NoNorm
from transformer_jax.tasks import train_and_test

QUICK = {"max_epochs": 1, "modulus": 11, "batch_size": 36, "model_dim": 16, "num_heads": 2}
STEPS = 100  # in an epoch


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrokkingConfig(TrainingConfig):
    """Train a Transformer to add numbers modulo a prime."""

    modulus: int = setting(113, of_model=True, least=3)  # p
    share: float = 0.3  # of all pairs that the training set has
    model_dim: int = 128  # width of the model; the feed-forward is four times as wide
    num_heads: int = 4  # attention heads
    batch_size: int = 3_830  # all pairs of the training set, ⌊share p²⌋
    max_epochs: int = 140  # of 100 steps each
    lr: float = 1e-3  # learning rate
    schedule: str = "constant"
    warmup: int = 10  # steps in which the learning rate rises
    weight_decay: float = 1.0  # of all parameters, as in the paper
    adam_b2: float = 0.98  # decay rate of Adam's mean of the squared gradients
    gradient_clip: float | None = None  # largest norm of the gradient
    best_by: str | None = None  # the last model is examined
    eval_every: int = 1  # epochs between evaluations
    logger: str = "tensorboard,csv"  # where curves go


def pairs(config: GrokkingConfig) -> TaskData:
    """Prompts a b = with the target (a + b) mod p: a random part of them, the others, and all."""
    p = config.modulus
    a, b = np.divmod(np.arange(p * p), p)
    tokens, sums = np.stack([a, b, np.full_like(a, p)], 1).astype(np.int32), ((a + b) % p).astype(np.int32)
    chosen, others = np.split(np.random.default_rng(config.seed).permutation(p * p), [int(config.share * p * p)])
    train, *rest = (
        ArrayDataset(tokens[rows], sums[rows]) for rows in (np.tile(chosen, STEPS), others, np.arange(p * p))
    )
    full = make_loader(train, config.batch_size)  # in order: each batch is a tile
    return TaskData(full, *(make_loader(one, config.batch_size) for one in rest))


class OneBlock(nn.Module):
    """A Transformer of one block, computed at the last position alone, since nothing else is read."""

    sizes: tuple[int, int, int]  # p, D, H

    @nn.compact
    def __call__(self, tokens, *, train: bool = False):
        p, width, num_heads = self.sizes
        x = nn.Embed(p + 1, width, embedding_init=nn.initializers.normal(width**-0.5), name="embedding")(tokens)
        x = LearnedPositions(3).encoding(width, 3)(x)  # [B 3 D]
        block = MAB(width, num_heads, 4 * width, settings=BlockSettings(norm=NoNorm))
        return nn.Dense(p, use_bias=False)(block(x[:, -1:], x, train=train))[:, 0]  # [B p]


class GrokkingTrainer(TrainerModule):
    name = "Grokking"
    config_class = GrokkingConfig
    load_data = staticmethod(pairs)
    writes_predictions, attention_picture = False, None  # the examples are no sequences of answers

    def create_model(self):
        return OneBlock((self.config.modulus, self.config.model_dim, self.config.num_heads))

    def model_inputs(self, inputs):
        return (inputs,)

    def create_optimizer(self, num_steps):
        c = self.config
        return optax.adamw(self.create_schedule(num_steps), c.adam_b1, c.adam_b2, weight_decay=c.weight_decay)

    def loss_function(self, params, batch, key, *, train):
        logits = self.apply(params, batch.inputs, key, train=train)
        is_target = jax.nn.one_hot(batch.targets, logits.shape[-1], dtype=bool)
        ahead = logits - jnp.take_along_axis(logits, batch.targets[:, None], -1)  # of the target
        # Cross-entropy whose gradient does not round 1 - p to 0, for which the paper computes it in float64.
        losses = jax.nn.softplus(jax.nn.logsumexp(ahead, -1, where=~is_target))
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == batch.targets, 1.0)}


def curves_and_spectrum(trainer: GrokkingTrainer, data: TaskData) -> dict[str, Any]:
    """When it learned what, which frequencies the embedding has, and the loss without them or with them alone."""
    p, table = trainer.config.modulus, np.asarray(trainer.params["embedding"]["embedding"])
    waves = np.fft.rfft(table[:p], axis=0)  # [(p + 1) / 2, D]
    powers = (abs(waves[1:]) ** 2).sum(-1)
    is_key = np.append(False, powers > powers.mean())  # by frequency, the constant included
    results = curves(trainer) | {"spectrum": (powers / powers.sum()).tolist()}
    results |= {"key_frequencies": np.flatnonzero(is_key).tolist(), "num_keys": int(is_key.sum())}
    results["key_share"] = float(powers[is_key[1:]].sum() / powers.sum())
    for name, kept in {"without_keys": ~is_key, "keys_alone": is_key | (np.arange(len(waves)) == 0)}.items():
        changed = table.copy()
        changed[:p] = np.fft.irfft(waves * kept[:, None], p, axis=0)
        params = {**trainer.params, "embedding": {"embedding": jnp.asarray(changed)}}
        results[name] = trainer.evaluate(data.test_loader, params)
    return results


def curves(trainer: GrokkingTrainer) -> dict[str, Any]:
    """Curves by name and step, and the first step at which the accuracy on either part of the pairs is 99 %."""
    found: dict[str, dict[str, float]] = {}
    for line in csv.DictReader((trainer.run.path / "metrics.csv").open()):
        found.setdefault(line["name"], {})[line["step"]] = float(line["value"])
    results: dict[str, Any] = {"curves": {name: found[name] for name in found if name.endswith(("loss", "accuracy"))}}
    for name, part in {"memorized": "train", "generalized": "val"}.items():
        results[name] = next((int(step) for step, value in found[f"{part}/accuracy"].items() if value >= 0.99), None)
    return results


@dataclasses.dataclass(frozen=True)
class Setting:
    quick: bool = False  # a small model and a few steps, to see that all works


def read_config(arguments: list[str]) -> GrokkingConfig:
    chosen, others = parse_known(Setting(), arguments)
    default = GrokkingConfig(**(QUICK if chosen.quick else {}))
    return parse(GrokkingConfig, others, default=default, task=GrokkingTrainer.name, choices=Setting)


if __name__ == "__main__":
    run(read_config, lambda config: train_and_test(GrokkingTrainer, config, pairs, curves_and_spectrum))
