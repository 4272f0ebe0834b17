"""Compile the training step of a language model for a mesh of CPU devices, for `scaling.py`; nothing is run.

`python benchmarks/scaling_step.py '{"model_dim": 64, …}'`, with the XLA flags that `scaling.py` sets, prints a JSON
object (see `compiled`). The step is the one that a trainer runs, with its loss, strategy, layout and optimizer. The
state exists only as shapes; the batch is all zeros.
"""

import dataclasses
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax import Array
from jaxtyping import PRNGKeyArray

from collectives import Program
from transformer_jax import (
    TrainerModule,
    TrainingConfig,
    TransformerLM,
    block_settings,
    make_loader,
    setting,
)
from transformer_jax.data.batch import ArrayDataset, Batch
from transformer_jax.fit.programs import create_programs
from transformer_jax.setting_groups import FeedForward
from transformer_jax.training.metrics import Elements
from transformer_jax.trees import Params

DEVICES_PER_HOST = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageConfig(TrainingConfig):
    """Settings of a language model and its training."""

    seq_len: int = 2048  # T, tokens of a row
    vocab_size: int = setting(16384, defines_model=True)  # V, kinds of tokens
    schedule: str = "noam"  # needs no number of steps
    norm_first: bool = True
    feed_forward: FeedForward = "gelu"


class LanguageTrainer(TrainerModule):
    """Trainer of a language model."""

    name = "LanguageTask"
    config_class = LanguageConfig
    config: LanguageConfig

    def create_model(self) -> TransformerLM:
        config = self.config
        sizes = (
            config.vocab_size,
            config.model_dim,
            config.num_heads,
            config.num_layers,
            4 * config.model_dim,
        )
        return TransformerLM(*sizes, settings=block_settings(config), tie_embeddings=False)

    def model_inputs(self, inputs: Array) -> tuple[Array]:
        return (inputs,)

    def loss_function(
        self, params: Params, batch: Batch, key: PRNGKeyArray | None, *, train: bool
    ) -> Elements:
        logits = self.apply(params, batch.inputs, key, train=train)  # [B T V]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.targets)  # [B T]
        return {"loss": (losses, 1.0), "accuracy": (logits.argmax(-1) == batch.targets, 1.0)}


def compiled(settings: dict[str, Any]) -> dict[str, Any]:
    """Compile a step, and return its memory, FLOPs and collectives (see `scaling.py`).

    `XLA_FLAGS`, as `scaling.py` sets them, must dump the partitioned program to a directory.
    """
    begin = time.perf_counter()
    config = LanguageConfig(
        **settings, steps_per_call=1, dtype="bfloat16", remat="all", scan_layers=True
    )
    tokens = np.zeros((config.batch_size, config.seq_len), np.int32)  # only their shape counts
    loader = make_loader(ArrayDataset(tokens, tokens), config.batch_size)
    programs = create_programs(LanguageTrainer(config).compiled, loader, num_steps=1000)
    runner = programs.runner
    runner.program.begin_to_compile(*runner.arguments(loader.example()))
    memory = runner.program.memory
    directory = re.search(r"--xla_dump_to=(\S+)", os.environ["XLA_FLAGS"])[1]
    (path,) = Path(directory).rglob("*run_stacked*.after_spmd-partitioning.*.txt")
    partitioned = Program(path.read_text())
    return {
        **memory._asdict(),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(programs.shapes.params)),
        "flops": partitioned.flops(),
        "collectives": totals(partitioned),
        "seconds": time.perf_counter() - begin,
    }


def totals(program: Program) -> list[dict[str, Any]]:
    """Sum up the collectives by kind and by whether they stay in a host."""
    total: dict[tuple[str, str], dict[str, Any]] = {}
    for one in program.collectives():
        where = "between hosts" if one.hosts(DEVICES_PER_HOST) > 1 else "in a host"
        entry = total.setdefault(
            (one.kind, where), {"times": 0, "elements": 0, "sent": 0.0, "through_port": 0.0}
        )
        entry["times"] += one.times
        entry["elements"] += one.times * one.elements
        entry["sent"] += one.sent
        entry["through_port"] += one.through_port(DEVICES_PER_HOST)
    return [{"kind": kind, "where": where, **entry} for (kind, where), entry in total.items()]


if __name__ == "__main__":
    print(json.dumps(compiled(json.loads(sys.argv[1]))))
