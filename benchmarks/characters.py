"""Measure a character-level GPT with the sizes of nanoGPT's CPU run, against eager PyTorch (`reference_gpt.py`).

python benchmarks/characters.py --data input.txt    # a minute on two CPU cores

Two measurements, in turns: the forward and backward pass (ours: a plain `jax.jit` after `prepare_jax`), and whole steps
(ours: the trainer with its loader). The reference has no biases; in our model they are 0.7 % of the parameters.
"""

import contextlib
import dataclasses
import io
import tempfile
from functools import partial
from pathlib import Path

import jax
import numpy as np
import optax
import torch

from harness import measure_turns, print_figures
from reference_gpt import GPT, Training
from transformer_jax import prepare_jax
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.tasks.language_model.config import LanguageModelConfig
from transformer_jax.tasks.language_model.task import LanguageModelTrainer, language_model_data

SIZES = {
    "num_layers": 4,
    "num_heads": 4,
    "model_dim": 128,
    "dim_feedforward": 512,
    "seq_len": 64,
    "batch_size": 12,
}
PARTS = {"feed_forward": "gelu", "norm": "layer", "positions": "learned", "tokenizer": "characters"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class CharactersConfig:
    """Measure a GPT over characters."""

    data: Path | None = None  # text; None for the standard library's docstrings
    turns: int = setting(17, least=1)  # of each contestant; the median counts
    steps: int = setting(40, least=8)  # in a turn, a multiple of those of a call of the trainer, 8

    __post_init__ = set_checked_fields


def measure(config: CharactersConfig) -> dict[str, dict[str, float]]:
    """Milliseconds by measurement and contestant."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        settings = LanguageModelConfig(
            data=config.data,
            **SIZES,
            **PARTS,
            lr=1e-3,
            train_size=40_000,
            steps_per_call=8,
            checkpoint_dir=directory,
        )
        prepare_jax(settings)
        with contextlib.redirect_stdout(io.StringIO()):
            data = language_model_data(settings)
            trainer = LanguageModelTrainer(settings)
            loop = stack.enter_context(trainer.training(data.train_loader, data.val_loader))
            loop.train_until(1)
            model, params = trainer.model, jax.device_get(loop.state.params)
            tokens = np.random.default_rng(0).integers(model.vocabulary_size, size=(12, 65))

            def loss(params, tokens):
                logits = model.apply({"params": params}, tokens[:, :-1], train=True)
                return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

            ours = jax.jit(jax.value_and_grad(loss))
            sizes = [SIZES[name] for name in ("seq_len", "model_dim", "num_heads", "num_layers")]
            training, rows = Training(GPT(model.vocabulary_size, *sizes)), torch.tensor(tokens)
            both = {
                "transformer-jax": lambda: jax.block_until_ready(ours(params, tokens)),
                "eager PyTorch": partial(training.gradients, rows),
            }
            whole = {
                "transformer-jax": lambda: loop.train_until(loop.step + config.steps),
                "eager PyTorch": lambda: [training.step(rows) for _ in range(config.steps)],
            }
            found = {"forward and backward": measure_turns(both, config.turns, turn_seconds=0.5)}
            steps = measure_turns(whole, config.turns)
            found["a step"] = {
                name: milliseconds / config.steps for name, milliseconds in steps.items()
            }
    return found


def main(config: CharactersConfig) -> None:
    print_figures(measure(config), " ms")


if __name__ == "__main__":
    run(partial(parse, CharactersConfig), main)
