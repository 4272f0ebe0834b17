"""Trainings on CPU devices, in one process or in several: `python mesh_runs.py DIRECTORY RUNS…`.

Each RUNS is a JSON list of settings, one per training, and runs in one process, forked from a parent that has imported
everything. In the settings, `task` is a key of `TASKS`, and `stop_after` ends the training after that epoch. The output
is a JSON list with a list per process. It has, for each training, the losses of all steps, the last metrics, the share
of the parameters and of the optimizer's state on the fullest device of the process at the start and at the end, and
the number of training rows that the process loaded. With JAX_ENABLE_X64=1, training is in float64, so that rounding
errors are below 1e-12.
"""

import json
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import linen as nn

from transformer_jax import LanguageModelConfig, ReverseConfig, TranslationConfig
from transformer_jax.devices.compilation import RUN_ONCE_OPTIONS, STEP_OPTIONS, prepare_jax
from transformer_jax.devices.processes import whole
from transformer_jax.tasks.language_model.task import LanguageModelTrainer, language_model_data
from transformer_jax.tasks.reverse import ReverseTrainer, reverse_data
from transformer_jax.tasks.translation.config import translation_data
from transformer_jax.tasks.translation.task import TranslationTrainer
from transformer_jax.training.callbacks import Callback, Step
from transformer_jax.trees import Params


class Normalised(nn.Module):
    """A dense layer, BatchNorm, and a dense layer."""

    @nn.compact
    def __call__(self, x: jax.Array, *, train: bool = False) -> jax.Array:
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(7)(x))
        return nn.Dense(10)(nn.relu(x))


class NormalisedTrainer(ReverseTrainer):
    """The reverse task by a model with running averages."""

    name = "Normalised"

    def create_model(self) -> nn.Module:
        return Normalised()


SMALL = {"max_epochs": 1, "eval_every": 1, "warmup": 3, "log_every": 10}
TASKS = {
    "normalised": (
        NormalisedTrainer,
        ReverseConfig,
        reverse_data,
        SMALL | {"train_size": 640, "val_size": 100, "test_size": 9},
    ),
    "reverse": (
        ReverseTrainer,
        ReverseConfig,
        reverse_data,
        SMALL | {"train_size": 640, "val_size": 100, "test_size": 9, "num_heads": 2, "dropout_prob": 0.1},
    ),
    "dates": (
        TranslationTrainer,
        TranslationConfig,
        translation_data,
        SMALL
        | {"train_size": 64, "val_size": 32, "test_size": 32, "batch_size": 32, "model_dim": 32, "warmup": 0}
        | {"dim_feedforward": 64, "num_layers": 1, "num_heads": 2},
    ),
    "text": (
        LanguageModelTrainer,
        LanguageModelConfig,
        language_model_data,
        SMALL
        | {"train_size": 160, "batch_size": 32, "model_dim": 32, "dim_feedforward": 64, "num_layers": 1, "num_heads": 2}
        | {"seq_len": 32, "dropout_prob": 0.1},
    ),
}


def share_of_fullest(tree: Any) -> float:
    """Return the elements on the fullest device as a share of all elements."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim]
    held: dict[Any, int] = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            held[shard.device] = held.get(shard.device, 0) + shard.data.size
    return max(held.values()) / sum(leaf.size for leaf in leaves)


class CountingRows:
    """A data set that counts the rows that are read."""

    def __init__(self, dataset: Any) -> None:
        self._dataset, self.rows = dataset, 0

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, indices: Any) -> Any:
        self.rows += len(indices)
        return self._dataset.__getitems__(indices)


def train(directory: Path, settings: dict[str, Any]) -> dict[str, Any]:
    trainer_class, config_class, load_data, small = TASKS[settings.pop("task", "reverse")]
    losses: list[float] = []

    class Losses(Callback):
        def on_step(self, step: Step) -> None:
            losses.append(float(step.metrics["loss"]))

    class Trainer(trainer_class):  # type: ignore[misc, valid-type]
        def create_callbacks(self, loggers: Any) -> list[Callback]:
            return [Losses()]

        def initial_params(self, *arguments: Any) -> Params:
            params = super().initial_params(*arguments)  # drawn in float32, so that both types begin with the same
            return jax.tree.map(lambda array: array.astype(float), params)  # JAX's widest

    Trainer.__name__ = trainer_class.__name__
    stop_after = settings.pop("stop_after", None)
    config = config_class(**small | settings, checkpoint_dir=directory, quiet=True)
    prepare_jax(config)
    data = load_data(config)
    data.train_loader.dataset = counting = CountingRows(data.train_loader.dataset)
    trainer = Trainer(config.resolved(len(data.train_loader)), data.constants)
    with trainer, trainer.training(data.train_loader, data.val_loader) as loop:
        shares = [share_of_fullest((loop.state.params, loop.state.opt_state))]
        loop.train_until(loop.num_steps if stop_after is None else stop_after * loop.steps_per_epoch)
        shares.append(share_of_fullest((loop.state.params, loop.state.opt_state)))
        metrics = trainer.run.checkpoints.metrics(loop.step)
    params = [float(np.abs(leaf).sum(dtype=np.float64)) for leaf in jax.tree.leaves(whole(loop.state.params))]
    return {"losses": losses, "metrics": metrics, "shares": shares, "rows": counting.rows, "params": params}


def train_all(directory: Path, runs: str) -> list[dict[str, Any]]:
    STEP_OPTIONS.update(RUN_ONCE_OPTIONS)  # as in all tests
    found = [train(directory, settings) for settings in json.loads(runs)]
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()  # waits for the others
    return found


if __name__ == "__main__":
    _, parent, *runs_of_each = sys.argv
    with ProcessPoolExecutor(len(runs_of_each), get_context("fork")) as pool:
        print(json.dumps([*pool.map(partial(train_all, Path(parent)), runs_of_each)]))
