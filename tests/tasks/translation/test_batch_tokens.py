"""Batches by number of tokens: their contents, and a training on them that is interrupted and resumed."""

import dataclasses

import jax
import numpy as np
import pytest

from transformer_jax.tasks.translation.task import TranslationConfig, TranslationTrainer, translation_data
from transformer_jax.training import Callback

MOST = 101
TINY = {"model_dim": 8, "num_heads": 1, "num_layers": 1, "dim_feedforward": 8, "warmup": 2, "quiet": True}


@pytest.fixture
def config(tmp_path) -> TranslationConfig:
    pairs = [f"{'a' * (1 + 5 * number % 19)}{number}\t{'b' * (1 + 7 * number % 23)}{number}" for number in range(67)]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs))
    settings = TINY | {"data": tmp_path / "pairs.tsv", "batch_tokens": MOST, "max_epochs": 2, "eval_every": 2}
    return TranslationConfig(**settings, num_devices=1, checkpoint_dir=tmp_path)


def num_targets(dataset) -> int:
    return sum(len(pair.target) + 1 for pair in dataset.pairs)  # with the end


def test_a_batch_has_at_most_so_many_tokens_with_padding_and_an_epoch_every_pair_once(config):
    loader = translation_data(config).train_loader
    batches = list(loader.epoch(1))
    shapes = [(*inputs.source.shape, inputs.target.shape[1]) for inputs, _ in batches]
    assert len(batches) == len(loader)
    assert max(rows * max(lengths) for rows, *lengths in shapes) <= MOST
    real = [int((targets != loader.dataset.tokenizers.target.pad).sum()) for _, targets in batches]
    assert (sum(rows for rows, *_ in shapes), sum(real)) == (len(loader.dataset), num_targets(loader.dataset))
    compiled = {
        (loader.token_batches.rows_like(samples), *shape[1:]) for samples, shape in zip(batches, shapes, strict=True)
    }
    assert compiled == {(MOST // max(lengths), *lengths) for _, *lengths in shapes}  # short ones are filled up
    assert len(compiled) <= 4


def trained(config: TranslationConfig, stop_after: int | None = None):
    """Train; return the parameters and the sums of each step's loss."""
    sums = []

    class Sums(Callback):
        def on_step(self, step):
            sums.append(tuple(map(float, step.sums["loss"])))

    class Trainer(TranslationTrainer):
        def create_callbacks(self, loggers):
            return [Sums()]

    data = translation_data(config)
    trainer = Trainer(config)
    with trainer, trainer.training(data.train_loader, data.val_loader) as loop:
        loop.train_until(loop.num_steps if stop_after is None else stop_after)
        return jax.device_get(loop.state.params), sums, num_targets(data.train_loader.dataset)


@pytest.mark.slow
def test_a_training_that_is_cut_off_in_an_epoch_goes_on_with_the_same_sums(config, tmp_path):
    params, sums, tokens = trained(config)
    half = len(sums) // 2
    assert [sum(weight for _, weight in part) for part in (sums[:half], sums[half:])] == [tokens, tokens]
    cut = dataclasses.replace(config, checkpoint_dir=tmp_path / "cut", checkpoint_every=half - 2)
    _, first, _ = trained(cut, stop_after=half - 2)
    again, rest, _ = trained(cut)
    assert first + rest == sums
    jax.tree.map(np.testing.assert_array_equal, again, params)
