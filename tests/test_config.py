"""Settings: the criterion for the best model, settings read from a file, and values that cannot work."""

import math
from pathlib import Path

import pytest

from transformer_jax import Criterion, InputError, ReverseConfig, TrainingConfig


@pytest.mark.parametrize("text", ["val/loss:min", "val/accuracy:max", "val/a/b:min"])
def test_a_criterion_reads_what_it_writes(text):
    criterion = Criterion.parse(text)
    assert str(criterion) == text
    assert f"val/{criterion.metric}:{criterion.mode}" == text
    assert TrainingConfig(best_by=text).criterion == criterion


@pytest.mark.parametrize("text", ["loss", "loss:min", "train/loss:min", "val/:min", "val/loss", "val/loss:least", ""])
def test_a_criterion_of_another_form_is_an_error_that_shows_the_form(text):
    with pytest.raises(InputError, match="it must be val/METRIC:max or val/METRIC:min, as val/loss:min"):
        TrainingConfig(best_by=text)


@pytest.mark.parametrize(
    ("mode", "new", "old", "better"),
    [
        ("max", 0.7, 0.6, True),
        ("max", 0.5, 0.6, False),
        ("min", 0.5, 0.6, True),
        ("min", 0.7, 0.6, False),
        ("max", 0.6, 0.6, True),  # of equal values the later
        ("min", 0.6, 0.6, True),
        ("max", math.nan, 0.6, False),
        ("min", math.nan, math.nan, False),
        ("min", 0.6, math.nan, True),
    ],
)
def test_a_criterion_compares_two_evaluations(mode, new, old, better):
    assert Criterion("loss", mode).is_better(new, old) == better


def test_a_config_is_read_from_json_without_what_belongs_to_the_machine():
    stored = {"model_dim": 12, "lr": 0.25, "num_workers": 3, "num_devices": 8, "compilation_cache": "/elsewhere"}
    stored |= {"checkpoint_dir": "/there", "best_by": None}
    config = ReverseConfig.from_json(stored)
    assert config == ReverseConfig(model_dim=12, lr=0.25)
    assert config.checkpoint_dir == Path("checkpoints")


def test_an_unknown_setting_in_json_is_an_error_that_names_it():
    with pytest.raises(InputError, match="unknown settings: heads, wings"):
        ReverseConfig.from_json({"wings": 8, "heads": 3, "lr": 0.25})


def test_an_exported_config_has_the_defaults_of_the_settings_that_do_not_change_the_model():
    config = ReverseConfig(model_dim=12, log_every=7, num_workers=3, pretrained="reverse", checkpoint_dir=Path("x"))
    assert config.without_neutral() == ReverseConfig(model_dim=12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"weight_decay": -0.1}, "weight_decay is -0.1; it must be at least 0"),
        ({"weight_decay": math.inf}, "weight_decay is inf; it must be finite"),
        ({"weight_decay": math.nan}, "weight_decay is nan; it must be finite"),
        ({"adam_b1": 1.0}, "adam_b1 is 1.0; it must be at least 0 and below 1"),
        ({"adam_b2": -0.5}, "adam_b2 is -0.5; it must be at least 0 and below 1"),
        ({"patience": -1}, "patience is -1; it must be at least 0"),
        ({"num_devices": 5}, "num_devices is 5; it must be a divisor of batch_size, 128"),
    ],
)
def test_a_value_that_cannot_work_is_named(settings, message):
    with pytest.raises(InputError, match=message):
        TrainingConfig(**settings)
