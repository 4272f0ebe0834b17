"""Grokking of modular addition (Nanda et al. 2023, *Progress measures for grokking*, sections 3 to 5).

A one-block Transformer learns (a + b) mod p from 30 % of the pairs (a, b). It memorizes these pairs first, then finds
an algorithm that uses a few frequencies. An epoch of the paper is one full-batch step; an epoch here has 100 of them.
`results.json` contains the `curves`, the `spectrum` of the embedding's squared norm, its `key_frequencies`, and the
loss on all pairs with these frequencies removed (`without_keys`) or with all others removed (`keys_alone`).

    python experiments/papers/grokking.py --seeds 0..4
"""

import csv
import dataclasses
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax
from presets import PaperConfig, PaperTrainer, main

from transformer_jax import BlockSettings, TaskData, make_loader
from transformer_jax.data import ArrayDataset
from transformer_jax.fields import setting
from transformer_jax.nn import MAB, NoNorm

QUICK = {"max_epochs": 1, "modulus": 11, "batch_size": 36, "model_dim": 16, "num_heads": 2}
STEPS, PARTS = 100, ("train", "val")  # steps per epoch; training pairs and held-out pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class GrokkingConfig(PaperConfig):
    """Train a Transformer to add numbers modulo a prime."""

    modulus: int = setting(113, defines_model=True, least=3)  # p
    share: float = 0.3  # of all pairs that are trained on
    model_dim: int = 128  # width of the model; the feed-forward is four times as wide
    num_heads: int = 4  # attention heads
    batch_size: int = 3_830  # all pairs of the training set, ⌊share p²⌋
    max_epochs: int = 140  # of 100 steps each
    lr: float = 1e-3  # learning rate after the warmup
    warmup: int = 10  # steps in which the learning rate rises
    best_by: str | None = "val/loss:min"  # which model is examined
    eval_every: int = 1
    logger: str = "tensorboard,csv"


def pairs(config: GrokkingConfig) -> TaskData:
    """Prompts `a b =` with targets (a + b) mod p: random training pairs, the held-out pairs, and all pairs."""
    p = config.modulus
    tokens = np.array([(a, b, p) for a in range(p) for b in range(p)], np.int32)
    chosen, others = np.split(
        np.random.default_rng(config.seed).permutation(p * p), [int(config.share * p * p)]
    )
    # one tile per batch
    parts = [tokens[rows] for rows in (np.tile(chosen, STEPS), others, np.arange(p * p))]
    return TaskData(
        *(make_loader(ArrayDataset(part, part.sum(1) % p), config.batch_size) for part in parts)
    )


class OneBlock(nn.Module):
    """One-block Transformer; only the last position is computed, because only its logits are used."""

    sizes: tuple[int, int, int]  # p, D, H

    @nn.compact
    def __call__(self, tokens, *, train: bool = False):
        p, width, num_heads = self.sizes
        init = nn.initializers.normal(width**-0.5)
        embedding = nn.Embed(p + 1, width, embedding_init=init, name="embedding")
        x = embedding(tokens) + self.param("positions", init, (3, width))  # [B 3 D]
        block = MAB(width, num_heads, 4 * width, settings=BlockSettings(norm=NoNorm))
        return nn.Dense(p, use_bias=False)(block(x[:, -1:], x, train=train))[:, 0]  # [B p]


class GrokkingTrainer(PaperTrainer):
    name = "Grokking"
    config_class = GrokkingConfig
    load_data = staticmethod(pairs)

    def create_model(self):
        return OneBlock((self.config.modulus, self.config.model_dim, self.config.num_heads))

    def create_optimizer(self, num_steps):
        # decays biases too
        return optax.adamw(self.create_schedule(num_steps), b2=0.98, weight_decay=1.0)

    def loss_function(self, params, batch, key, *, train):
        logits = self.apply(params, batch.inputs, key, train=train)
        # relative to the target's logit
        ahead = logits - jnp.take_along_axis(logits, batch.targets[:, None], -1)
        # This form of the cross-entropy does not round 1 - p to 0 in its gradient; the paper uses float64 instead.
        losses = nn.softplus(
            nn.logsumexp(ahead, -1, where=batch.targets[:, None] != jnp.arange(self.config.modulus))
        )
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == batch.targets, 1.0)}


def curves_and_spectrum(trainer: GrokkingTrainer, data: TaskData) -> dict[str, Any]:
    """Learning curves, key frequencies of the embedding, and test metrics without these or with these alone."""
    p, table = trainer.config.modulus, np.asarray(trainer.params["embedding"]["embedding"])
    waves = np.fft.rfft(table[:p], axis=0)  # [(p + 1) / 2, D]
    # without the constant term
    shares = (abs(waves[1:]) ** 2).sum(-1) / (abs(waves[1:]) ** 2).sum()
    is_key = np.append(False, shares > shares.mean())
    results = curves(trainer) | {"spectrum": shares.tolist(), "key_share": shares[is_key[1:]].sum()}
    results |= {"key_frequencies": np.flatnonzero(is_key).tolist(), "num_keys": int(is_key.sum())}
    for name, kept in {"without_keys": ~is_key, "keys_alone": np.append(True, is_key[1:])}.items():
        changed = np.concatenate([np.fft.irfft(waves * kept[:, None], p, axis=0), table[p:]])
        params = trainer.params | {"embedding": {"embedding": jnp.asarray(changed, jnp.float32)}}
        results[name] = trainer.evaluate(data.test_loader, params)
    return results


def curves(trainer: GrokkingTrainer) -> dict[str, Any]:
    """Metrics by name and step, and for each part of the pairs the first step with an accuracy of 99 %."""
    found: dict[str, dict[str, float]] = {
        f"{part}/{name}": {} for part in PARTS for name in ("loss", "accuracy")
    }
    for line in csv.DictReader((trainer.run.path / "metrics.csv").read_text().splitlines()):
        found.get(line["name"], {})[line["step"]] = float(line["value"])
    reached = {
        part: [step for step, value in found[f"{part}/accuracy"].items() if value >= 0.99]
        for part in PARTS
    }
    return {"curves": found} | {
        f"steps_to_99_{part}": int(steps[0]) for part, steps in reached.items() if steps
    }


if __name__ == "__main__":
    main(GrokkingTrainer, {"quick": QUICK}, curves_and_spectrum)
