"""Train a translator on pairs of texts beside a loop with `torch.nn.Transformer`, an epoch of each in turns.

python benchmarks/translation_epochs.py --data train.de-en.tsv    # Multi30k: 20 minutes on two CPU cores

The models have the sizes of `translation.py`, for lower-case words that occur at least twice. Both read the same padded
batches. Ours is the trainer, which also evaluates and writes checkpoints and events. The first epoch of each is not
counted, since ours compiles in it. A twentieth of the pairs is kept for validation, and as many for a test.
"""

import contextlib
import dataclasses
import io
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median

import jax
import numpy as np
import torch
from torch import Tensor, nn

from harness import print_figures
from transformer_jax import prepare_jax
from transformer_jax.cli import parse, run
from transformer_jax.data.batch import Samples
from transformer_jax.data.loader import Loader
from transformer_jax.errors import check_positive
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.tasks.translation.config import (
    TranslationConfig,
    TranslationData,
    translation_data,
)
from transformer_jax.tasks.translation.task import TranslationTrainer
from translation import DROPOUT, SizesConfig, TorchTranslator


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochsConfig:
    """Compare the epochs of a translator with those of a loop in PyTorch."""

    data: Path  # file of pairs, with source TAB target on each line
    model_dim: int = setting(256, least=8)  # D
    num_heads: int = setting(8, least=1)  # H
    num_layers: int = setting(3, least=1)  # in each stack
    dim_feedforward: int = setting(512, least=1)  # F
    batch_size: int = setting(128, least=1)  # pairs
    lr: float = setting(5e-4, check=check_positive)  # constant learning rate
    # timed, of each contestant, after one that is not; the median counts
    epochs: int = setting(2, least=1)

    __post_init__ = set_checked_fields


class Theirs:
    """Epochs in eager PyTorch; all matrices start with Xavier's uniform weights, embeddings too."""

    def __init__(self, config: EpochsConfig, data: TranslationData) -> None:
        torch.manual_seed(0)
        self.loader, dataset = data.train_loader, data.train_loader.dataset
        source, target = dataset.tokenizers
        self.source_pad, self.target_pad = source.pad, target.pad
        names = "model_dim", "num_heads", "num_layers", "dim_feedforward"
        sizes = {name: getattr(config, name) for name in names}
        sizes |= {"sources": source.vocabulary_size, "targets": target.vocabulary_size}
        self.model = TorchTranslator(SizesConfig(**sizes, length=max(map(max, dataset.shapes))))
        for parameter in self.model.parameters():
            if parameter.ndim > 1:
                nn.init.xavier_uniform_(parameter)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=config.lr)

    def losses(self, samples: Samples, reduction: str) -> Tensor:
        """Cross-entropy of the real tokens of a batch, their mean or sum."""
        inputs, targets = samples
        source, read, target = (torch.from_numpy(ids).long() for ids in (*inputs, targets))
        logits = self.model(source, read, source == self.source_pad)
        kinds = {"ignore_index": self.target_pad, "reduction": reduction}
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), **kinds)

    def run(self, epoch: int) -> None:
        """Train an epoch."""
        self.model.train()
        for samples in self.loader.epoch(epoch):
            self.optimizer.zero_grad(set_to_none=True)
            self.losses(samples, "mean").backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()

    @torch.inference_mode()
    def evaluate(self, loader: Loader) -> float:
        """Loss per token of a data set."""
        self.model.eval()
        total = sum(self.losses(samples, "sum").item() for samples in loader)
        return total / sum(np.count_nonzero(targets != self.target_pad) for _, targets in loader)


def settings_of(config: EpochsConfig, directory: Path) -> TranslationConfig:
    """The settings of `translate.py` that make it the same training."""
    same = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name != "epochs"
    }
    return TranslationConfig(
        **same,
        **dict.fromkeys(("source_tokenizer", "target_tokenizer"), "words:2+"),
        **dict.fromkeys(("dropout_prob", "attention_dropout"), DROPOUT),
        lower_case=True,
        schedule="constant",
        warmup=0,
        max_epochs=config.epochs + 1,
        eval_every=1,
        checkpoint_dir=directory,
    )


def measure(config: EpochsConfig) -> dict[str, dict[str, float]]:
    """Train both; seconds of an epoch and loss by contestant."""
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        settings = settings_of(config, Path(directory))
        prepare_jax(settings)
        data = translation_data(settings)
        trainer, theirs = TranslationTrainer(settings), Theirs(config, data)
        seconds: dict[str, list[float]] = {"transformer-jax": [], "torch.nn.Transformer": []}
        with contextlib.redirect_stdout(io.StringIO()):
            ours = stack.enter_context(trainer.training(data.train_loader, data.val_loader))
            for epoch in range(config.epochs + 1):
                start = time.perf_counter()
                ours.train_until((epoch + 1) * len(data.train_loader))
                between = time.perf_counter()
                theirs.run(epoch)
                seconds["transformer-jax"].append(between - start)
                seconds["torch.nn.Transformer"].append(time.perf_counter() - between)
        params = jax.device_get(ours.state.params)
        loss = trainer.evaluate(data.val_loader, params)["loss"], theirs.evaluate(data.val_loader)
    return {
        "seconds of an epoch": {name: median(times[1:]) for name, times in seconds.items()},
        "loss on the validation pairs": dict(zip(seconds, loss, strict=True)),
    }


if __name__ == "__main__":
    run(partial(parse, EpochsConfig), lambda config: print_figures(measure(config)))
