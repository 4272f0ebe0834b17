"""The settings of a model's blocks reach it by flag, in every task."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from finished_runs import REVERSE

from transformer_jax import (
    AttentionSettings,
    BlockSettings,
    DigitsConfig,
    GatedFeedForward,
    InputError,
    LanguageModelConfig,
    LearnedPositions,
    ReverseConfig,
    RMSNorm,
    RotaryPositions,
    TrainingConfig,
    Transformer,
    TransformerPredictor,
    TranslationConfig,
    block_settings,
    load_run,
    train_reverse,
)
from transformer_jax.cli import parse
from transformer_jax.nn.layers import FeedForward
from transformer_jax.tasks import AnomalyTrainer, LanguageModelTrainer, ReverseTrainer, TranslationTrainer
from transformer_jax.tasks.block_settings import FEED_FORWARDS, NORMS, POSITIONS

TASKS = {
    "reverse": (ReverseTrainer, ReverseConfig),
    "anomaly": (AnomalyTrainer, DigitsConfig),
    "translation": (TranslationTrainer, TranslationConfig),
    "language model": (LanguageModelTrainer, LanguageModelConfig),
}
FLAGS = "--positions rotary --norm rms --norm-first --feed-forward swiglu --num-kv-heads 2 --qk-norm --attention plain"
SIZES = "--model-dim 24 --num-heads 4 --attention-dropout 0.25 --dropout-prob 0.125 --remat dots --scan-layers"


@pytest.mark.parametrize(("trainer_class", "config_class"), TASKS.values(), ids=TASKS)
def test_flags_reach_the_model(trainer_class, config_class):
    config = parse(config_class, [*FLAGS.split(), *SIZES.split()])
    assert trainer_class(config).model.settings == BlockSettings(
        0.125,
        norm_first=True,
        activation=nn.silu,
        remat="dots",
        scan_layers=True,
        positions=RotaryPositions(),
        norm=RMSNorm,
        feed_forward=GatedFeedForward,
        attention=AttentionSettings(num_kv_heads=2, qk_norm=RMSNorm, dropout_prob=0.25, implementation="plain"),
    )


SIZED = {"model_dim": 15, "num_heads": 5, "dropout_prob": 0.25}
PREDICTOR = {"num_layers": 3, "input_dropout_prob": 0.125, **SIZED}
TRANSLATOR = {"dim_feedforward": 13, **SIZED}
OF_BYTES = {"source_vocabulary_size": 259, "target_vocabulary_size": 259, "tie_embeddings": True}


@pytest.mark.parametrize(
    ("trainer_class", "config", "model"),
    [
        (ReverseTrainer, ReverseConfig(**PREDICTOR), TransformerPredictor(num_classes=10, **PREDICTOR)),
        (AnomalyTrainer, DigitsConfig(**PREDICTOR), TransformerPredictor(num_classes=1, **PREDICTOR)),
        (
            TranslationTrainer,
            TranslationConfig(num_layers=3, **TRANSLATOR),
            Transformer(num_encoder_layers=3, num_decoder_layers=3, **OF_BYTES, **TRANSLATOR),
        ),
    ],
)
def test_the_model_is_made_by_the_settings_and_its_blocks_are_those_of_the_paper(trainer_class, config, model):
    assert trainer_class(config).model == model


def test_each_word_has_the_part_of_its_name():
    for word, part in {**POSITIONS, **NORMS}.items():
        assert part.__name__.lower().startswith(word.removesuffix("ne"))
    found = {word: block_settings(TrainingConfig(feed_forward=word)) for word in FEED_FORWARDS}
    assert {word: (settings.feed_forward, settings.activation) for word, settings in found.items()} == {
        "relu": (FeedForward, nn.relu),
        "gelu": (FeedForward, nn.gelu),
        "swiglu": (GatedFeedForward, nn.silu),
        "geglu": (GatedFeedForward, nn.gelu),
    }


@pytest.mark.parametrize(
    ("trainer", "length"),
    [
        (ReverseTrainer(ReverseConfig(positions="learned", seq_len=7)), 7),
        (AnomalyTrainer(DigitsConfig(positions="learned", set_size=5)), 5),
        (TranslationTrainer(TranslationConfig(positions="learned", max_bytes=29)), 32),  # with START and END, padded
    ],
)
def test_as_many_positions_are_learned_as_the_task_has(trainer, length):
    assert trainer.model.settings.positions == LearnedPositions(length)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3; it must divide num_heads, 4"),
        ({"model_dim": 15, "num_heads": 3, "positions": "rotary"}, "a head is 5 wide"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0"),
        ({"positions": "rotating"}, "positions is 'rotating'.* sinusoidal"),
    ],
)
def test_a_setting_that_cannot_work_is_an_error(settings, message):
    with pytest.raises(InputError, match=message):
        ReverseTrainer(ReverseConfig.from_json({"model_dim": 24, "num_heads": 4} | settings))


SHORT = REVERSE | {"num_layers": 1, "max_epochs": 1, "train_size": 21, "warmup": 1, "quiet": True}


@pytest.mark.slow
def test_a_run_of_other_parts_is_opened_with_them_anywhere_and_scored_with_any_implementation(tmp_path, capsys):
    parts = {"positions": "relative", "norm": "rms", "feed_forward": "geglu", "num_kv_heads": 1, "qk_norm": True}
    settings = SHORT | parts | {"checkpoint_dir": tmp_path}
    blockwise, results = train_reverse(**settings | {"quiet": False}, verbose=True, attention="blockwise")
    assert "blockwise attention of 5 × 5 logits: it was asked for; not plain: " in capsys.readouterr().out
    run = load_run(blockwise.run.path)
    assert {name: getattr(run.config, name) for name in parts} == parts
    assert run.config.attention == run.model.settings.attention.implementation == "auto"
    jax.tree.map(np.testing.assert_array_equal, run.params, blockwise.params)
    again, same = train_reverse(**settings, attention="plain")
    assert again.run.path == blockwise.run.path
    assert same["test"]["loss"] == pytest.approx(results["test"]["loss"], rel=1e-5)


def test_one_that_cannot_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="implementation is 'fused', which cannot run: there is no kernel for the"):
        train_reverse(**SHORT, attention="fused", checkpoint_dir=tmp_path)
    assert not [*tmp_path.iterdir()]
