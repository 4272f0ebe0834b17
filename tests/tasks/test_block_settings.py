"""Flags for the settings of blocks reach the model in every task."""

import flax.linen as nn
import jax
import numpy as np
import pytest
from finished_runs import REVERSE

import transformer_jax as tj
from transformer_jax.cli import parse
from transformer_jax.nn.layers import FeedForward
from transformer_jax.tasks import AnomalyTrainer, LanguageModelTrainer, ReverseTrainer, TranslationTrainer
from transformer_jax.tasks.block_settings import FEED_FORWARDS, NORMS, POSITIONS

FLAGS = "--positions rotary --norm rms --norm-first --feed-forward swiglu --num-kv-heads 2 --qk-norm --attention plain"
SIZES = "--model-dim 24 --num-heads 4 --attention-dropout 0.25 --dropout-prob 0.125 --remat dots --scan-layers"
SETTINGS = tj.BlockSettings(
    0.125,
    norm_first=True,
    activation=nn.silu,
    remat="dots",
    scan_layers=True,
    positions=tj.RotaryPositions(),
    norm=tj.RMSNorm,
    feed_forward=tj.GatedFeedForward,
    attention=tj.AttentionSettings(num_kv_heads=2, qk_norm=tj.RMSNorm, dropout_prob=0.25, implementation="plain"),
)
SIZED = {"model_dim": 24, "num_heads": 4, "settings": SETTINGS}
PREDICTOR = {"num_layers": 3, "input_dropout_prob": 0.5, **SIZED}
STACKS = {"num_encoder_layers": 3, "num_decoder_layers": 3, "dim_feedforward": 13, "tie_embeddings": True, **SIZED}
STACK = {"num_layers": 3, "dim_feedforward": 13, "max_len": 256, **SIZED}


@pytest.mark.parametrize(
    ("trainer_class", "flag", "model"),
    [
        (ReverseTrainer, "--input-dropout-prob=0.5", tj.TransformerPredictor(num_classes=10, **PREDICTOR)),
        (AnomalyTrainer, "--input-dropout-prob=0.5", tj.TransformerPredictor(num_classes=1, **PREDICTOR)),
        (TranslationTrainer, "--dim-feedforward=13", tj.Transformer(259, 259, **STACKS)),
        (LanguageModelTrainer, "--dim-feedforward=13", tj.TransformerLM(256, **STACK)),
    ],
)
def test_flags_reach_the_model(trainer_class, flag, model):
    config_class = trainer_class.config_class_of("digits")
    config = parse(config_class, ["--num-layers=3", flag, *FLAGS.split(), *SIZES.split()])
    assert trainer_class(config).model == model


def test_the_defaults_are_those_of_the_paper():
    assert tj.block_settings(tj.TrainingConfig()) == tj.BlockSettings()


def test_each_word_has_the_part_of_its_name():
    for word, part in {**POSITIONS, **NORMS}.items():
        assert part.__name__.lower().startswith(word.removesuffix("ne"))
    found = {word: tj.block_settings(tj.TrainingConfig(feed_forward=word)) for word in FEED_FORWARDS}
    assert {word: (settings.feed_forward, settings.activation) for word, settings in found.items()} == {
        "relu": (FeedForward, nn.relu),
        "gelu": (FeedForward, nn.gelu),
        "swiglu": (tj.GatedFeedForward, nn.silu),
        "geglu": (tj.GatedFeedForward, nn.gelu),
    }


@pytest.mark.parametrize(
    ("trainer", "length"),
    [
        (ReverseTrainer(tj.ReverseConfig(positions="learned", seq_len=7)), 7),
        (AnomalyTrainer(tj.DigitsConfig(positions="learned", set_size=5)), 5),
        (TranslationTrainer(tj.TranslationConfig(positions="learned", max_bytes=29)), 32),  # with START and END, padded
    ],
)
def test_as_many_positions_are_learned_as_the_task_has(trainer, length):
    assert trainer.model.settings.positions == tj.LearnedPositions(length)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads is 3; it must divide num_heads, 4"),
        ({"model_dim": 15, "num_heads": 3, "positions": "rotary"}, "5 of a head's 5 elements are rotated"),
        ({"attention_dropout": 1.0}, "attention_dropout is 1.0"),
        ({"positions": "rotating"}, "positions is 'rotating'.* sinusoidal"),
    ],
)
def test_a_setting_that_cannot_work_is_an_error(settings, message):
    with pytest.raises(tj.InputError, match=message):
        ReverseTrainer(tj.ReverseConfig.from_json({"model_dim": 24, "num_heads": 4} | settings))


SHORT = REVERSE | {"num_layers": 1, "max_epochs": 1, "train_size": 21, "warmup": 1, "quiet": True}


@pytest.mark.slow
def test_a_run_of_other_parts_is_opened_with_them_anywhere_and_scored_with_any_implementation(tmp_path, capsys):
    parts = {"positions": "relative", "norm": "rms", "feed_forward": "geglu", "num_kv_heads": 1, "qk_norm": True}
    settings = SHORT | parts | {"checkpoint_dir": tmp_path}
    blockwise, results = tj.train_reverse(**settings | {"quiet": False}, verbose=True, attention="blockwise")
    assert "blockwise attention of 5 × 5 logits: it was requested; not plain: " in capsys.readouterr().out
    run = tj.load_run(blockwise.run.path)
    assert {name: getattr(run.config, name) for name in parts} == parts
    assert run.config.attention == run.model.settings.attention.implementation == "auto"
    jax.tree.map(np.testing.assert_array_equal, run.params, blockwise.params)
    again, same = tj.train_reverse(**settings, attention="plain")
    assert again.run.path == blockwise.run.path
    assert same["test"]["loss"] == pytest.approx(results["test"]["loss"], rel=1e-5)


@pytest.mark.cpu(reason="a GPU has the kernel")
def test_one_that_cannot_run_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(tj.InputError, match="^fused attention cannot run: there is no kernel"):
        tj.train_reverse(**SHORT, attention="fused", checkpoint_dir=tmp_path)
    assert not [*tmp_path.iterdir()]
