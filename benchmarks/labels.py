"""Fine-tune a published encoder on labelled texts, beside the same in PyTorch, an epoch of each in turns.

python benchmarks/labels.py --data train.csv --test-data test.csv --init-from minilm/    # TREC: 10 minutes on two cores

Both start from the same weights, with a new head on the mean of the tokens, and read the same training texts with the
same learning rates. Ours is the trainer, which also compiles, evaluates and writes checkpoints; PyTorch's loop is eager
and pads each batch to its longest text. The first epoch of each is not counted in an epoch's time, but in the whole.
The accuracy on the test texts is measured after the last epoch.
"""

import contextlib
import dataclasses
import io
import random
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median

import jax
import torch
import transformers
from torch import Tensor, nn

from harness import print_figures
from transformer_jax import prepare_jax
from transformer_jax.cli import parse, run
from transformer_jax.fields import set_checked_fields, setting
from transformer_jax.tasks.classification.config import TASK, ClassificationConfig
from transformer_jax.tasks.classification.examples import Texts
from transformer_jax.tasks.classification.task import ClassificationTrainer, classification_data
from transformer_jax.tasks.experiment import chosen_config
from transformer_jax.trained.named import find_initial
from transformer_jax.training.schedules import SCHEDULES

DROPOUT = 0.1  # before the head, as in BERT's classifiers


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelsConfig:
    """Compare the fine-tuning of an encoder with a loop in PyTorch."""

    data: Path  # file of labelled texts, see classify.py
    val_data: Path | None = None  # file of validation texts; none: a part of data
    test_data: Path  # file of test texts
    init_from: str  # directory of the encoder
    batch_size: int = setting(32, least=1)  # texts
    max_epochs: int = setting(3, least=2)
    lr: float = 1e-4  # peak learning rate
    seeds: int = setting(1, least=1)  # number of trainings, with the seeds 0, 1, …

    __post_init__ = set_checked_fields


class Theirs(nn.Module):
    """An encoder of `transformers` with a head on the mean of its tokens, and its training in eager PyTorch."""

    def __init__(self, config: ClassificationConfig, labels: Sequence[str], num_steps: int) -> None:
        super().__init__()
        torch.manual_seed(config.seed)
        self.config, self.random = config, random.Random(config.seed)
        self.numbers = {label: number for number, label in enumerate(labels)}
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(config.init_from)
        self.encoder = transformers.AutoModel.from_pretrained(config.init_from)
        self.head = nn.Linear(self.encoder.config.hidden_size, len(labels))
        nn.init.normal_(self.head.weight, std=self.encoder.config.initializer_range)
        nn.init.zeros_(self.head.bias)
        self.optimizer = torch.optim.AdamW(self.parameters(), config.lr, weight_decay=0.0)
        schedule = SCHEDULES[config.schedule](config, num_steps)
        self.rates = [float(schedule(step)) for step in range(num_steps)]

    def forward(self, texts: Texts) -> Tensor:
        """Logits `[B, C]` of texts."""
        given = [each.texts[0] for each in texts]
        settings = {"padding": True, "truncation": True, "max_length": self.config.max_tokens}
        inputs = self.tokenizer(given, **settings, return_tensors="pt")
        hidden = self.encoder(**inputs).last_hidden_state
        is_token = inputs.attention_mask[..., None]
        pooled = (hidden * is_token).sum(1) / is_token.sum(1)
        return self.head(nn.functional.dropout(pooled, DROPOUT, self.training))

    def targets(self, texts: Texts) -> Tensor:
        """Numbers of the texts' labels."""
        return torch.tensor([self.numbers[each.labels[0]] for each in texts])

    def run(self, texts: Texts) -> None:
        """Train an epoch."""
        self.train()
        order = self.random.sample(list(texts), len(texts))
        size = self.config.batch_size
        for start in range(0, len(order) - size + 1, size):
            batch = order[start : start + size]
            self.optimizer.param_groups[0]["lr"] = self.rates.pop(0)
            self.optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(self(batch), self.targets(batch)).backward()
            nn.utils.clip_grad_norm_(self.parameters(), self.config.gradient_clip)
            self.optimizer.step()

    @torch.inference_mode()
    def accuracy(self, texts: Texts) -> float:
        """Share of the texts that get their label."""
        self.eval()
        parts = [texts[start : start + 64] for start in range(0, len(texts), 64)]
        right = sum(int((self(part).argmax(-1) == self.targets(part)).sum()) for part in parts)
        return right / len(texts)


def measure(config: LabelsConfig, seed: int) -> dict[str, dict[str, float]]:
    """Train both; seconds of an epoch and of all, and accuracy, by contestant."""
    seconds: dict[str, list[float]] = {"transformer-jax": [], "PyTorch": []}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        same = {
            field.name: getattr(config, field.name)
            for field in dataclasses.fields(config)
            if field.name != "seeds"
        }
        same |= {"seed": seed, "pooling": "mean", "patience": 0, "checkpoint_dir": Path(directory)}
        settings = chosen_config(None, ClassificationConfig(), same, TASK)
        prepare_jax(settings)
        with contextlib.redirect_stdout(io.StringIO()):
            start = time.perf_counter()
            data = classification_data(settings)
            steps = len(data.train_loader)
            trainer = ClassificationTrainer(settings)
            initial = find_initial(trainer, data.train_loader.example())
            ours = stack.enter_context(
                trainer.training(data.train_loader, data.val_loader, initial_params=initial)
            )
            between = time.perf_counter()
            resolved = settings.resolved(steps)
            theirs = Theirs(resolved, trainer.labels, resolved.num_steps(steps))
            before = {"transformer-jax": between - start, "PyTorch": time.perf_counter() - between}
            for epoch in range(config.max_epochs):
                start = time.perf_counter()
                ours.train_until((epoch + 1) * steps)
                between = time.perf_counter()
                theirs.run(data.splits.train)
                theirs.accuracy(data.splits.val)
                seconds["transformer-jax"].append(between - start)
                seconds["PyTorch"].append(time.perf_counter() - between)
        params = jax.device_get(ours.state.params)
        accuracy = trainer.evaluate(data.test_loader, params)["accuracy"]
    return {
        "seconds of an epoch": {name: median(times[1:]) for name, times in seconds.items()},
        "seconds of all": {name: before[name] + sum(times) for name, times in seconds.items()},
        "test accuracy": {
            "transformer-jax": accuracy,
            "PyTorch": theirs.accuracy(data.splits.test),
        },
    }


def measure_all(config: LabelsConfig) -> None:
    """Print the figures of each seed, and their means."""
    found = []
    for seed in range(config.seeds):
        found.append(measure(config, seed))
        print(f"seed {seed}:")
        print_figures(found[-1])
    means = {
        what: {name: mean(each[what][name] for each in found) for name in figures}
        for what, figures in found[0].items()
    }
    print("mean:")
    print_figures(means)


if __name__ == "__main__":
    run(partial(parse, LabelsConfig), measure_all)
