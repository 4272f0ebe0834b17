"""Settings: the criterion for the best model, settings read from a file, and values that cannot work."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from transformer_jax import InputError, ReverseConfig, TrainingConfig
from transformer_jax.config import Criterion


def test_a_criterion_reads_what_it_writes_and_nothing_else():
    assert Criterion.parse("val/a/b:min") == Criterion("a/b", "min")
    assert TrainingConfig(best_by="val/loss:max").criterion == Criterion("loss", "max")
    assert str(Criterion("loss", "max")) == "val/loss:max"
    for text in ("loss:min", "train/loss:min", "val/:min", "val/loss", "val/loss:least"):
        with pytest.raises(InputError, match="it must be val/METRIC:max or val/METRIC:min, e.g. val/loss:min"):
            TrainingConfig(best_by=text)


def test_a_config_is_read_from_json_without_what_belongs_to_the_machine():
    stored = {"model_dim": 12, "lr": 0.25, "num_workers": 3, "num_devices": 8, "compilation_cache": "/elsewhere"}
    stored |= {"checkpoint_dir": "/there", "best_by": None}
    config = ReverseConfig.from_json(stored)
    assert config == ReverseConfig(model_dim=12, lr=0.25)
    assert config.checkpoint_dir == Path("checkpoints")


def test_an_exported_config_has_the_defaults_of_the_settings_that_do_not_change_the_model():
    config = ReverseConfig(model_dim=12, log_every=7, num_workers=3, pretrained="reverse", checkpoint_dir=Path("x"))
    assert config.without_neutral() == ReverseConfig(model_dim=12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adam_b2": 0.99999999}, "adam_b2 is 0.99999999; it must be at least 0 and below 1, in float32"),
        ({"lr": 1e-50}, "lr is 1e-50; in float32 it must be 0, or from 1.2e-38"),
        ({"gradient_clip": 1e39}, r"gradient_clip is 1e\+39; in float32 it must be 0, or from 1.2e-38 to 3.4e\+38"),
        ({"weight_decay": 1e39}, r"weight_decay is 1e\+39; in float32 it must be 0, or from 1.2e-38 to 3.4e\+38"),
        ({"weight_decay": 1e-60}, "weight_decay is 1e-60; in float32 it must be 0, or from 1.2e-38"),
        ({"min_lr": 1e-40}, "min_lr is 1e-40; in float32 it must be 0, or from 1.2e-38"),
        ({"dropout_prob": 1e-60}, "dropout_prob is 1e-60; in float32 it must be 0, or from 1.2e-38"),
        ({"init_from": "a", "pretrained": "b"}, "pretrained is b, so nothing is trained, but init_from is a; give one"),
        ({"num_devices": 5}, "num_devices is 5; it must be a divisor of batch_size / accumulate, 128"),
        ({"accumulate": 5}, "accumulate is 5; it must be a divisor of batch_size, 128"),
        ({"accumulate": 64, "num_devices": 4}, "num_devices is 4; it must be a divisor of batch_size / accumulate, 2"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"lr": -math.inf}, "lr is -inf; in float32 it must be 0, or from"),
        ({"checkpoint_dir": Path("a\udcff")}, r"checkpoint_dir is 'a\\udcff'; it must be UTF-8 without control"),
        ({"pretrained": "a\nb"}, r"pretrained is 'a\\nb'; it must be UTF-8 without control characters"),
        ({"coordinator": "node1"}, "coordinator is 'node1'; it must be HOST:PORT, e.g. node1:12345"),
        ({"distributed": True, "seeds": "0..1"}, "distributed is True, but seeds and sweep"),
    ],
)
def test_a_value_that_cannot_work_is_named(settings, message):
    with pytest.raises(InputError, match=message) as caught:
        TrainingConfig(**settings)
    assert "\n" not in str(caught.value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherConfig(TrainingConfig):
    """Settings of types that no task here has. Its constructor has no type checks but its own, as in use."""

    widths: tuple[int, ...] = (3, 5)
    span: tuple[float, str] = (0.5, "a")
    mode: Literal["a", 1] = "a"
    table: dict[str, int] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_epochs", 1.5, "max_epochs is 1.5; it must be int"),
        ("max_epochs", True, "max_epochs is True; it must be int"),
        ("max_epochs", "x" * 1000, f"max_epochs is '{'x' * 59}…; it must be int"),
        pytest.param("lr", 10**400, "lr is an integer of 1329 bits; it may have at most 63", id="a long integer"),
        ("lr", "fast", "lr is 'fast'; it must be float"),
        ("checkpoint_dir", None, "checkpoint_dir is None; it must be Path"),
        ("mode", np.zeros(2), "mode is array([0., 0.]); it must be one of a, 1"),
        ("span", [2.0], "span is [2.0]; it must be tuple[float, str]"),
    ],
)
def test_a_value_of_another_type_is_named_in_python_and_from_json(name, value, message):
    for make in (lambda: OtherConfig(**{name: value}), lambda: OtherConfig.from_json({name: value})):
        with pytest.raises(InputError) as caught:
            make()
        assert str(caught.value) == message


def test_texts_are_paths_whole_numbers_are_numbers_and_numpys_numbers_are_pythons():
    config = OtherConfig(checkpoint_dir="runs", lr=1, model_dim=np.int64(12), weight_decay=np.float32(0.5))
    assert config == OtherConfig(checkpoint_dir=Path("runs"), lr=1.0, model_dim=12, weight_decay=0.5)
    assert [type(value) for value in (config.lr, config.model_dim, config.weight_decay)] == [float, int, float]


def test_the_types_of_a_tasks_own_settings_are_read_from_what_json_holds():
    config = OtherConfig(widths=(7, 11), span=(2.0, "b"), mode=1, table={"a": 1})
    stored = json.loads(json.dumps({name: getattr(config, name) for name in ("widths", "span", "mode", "table")}))
    assert OtherConfig.from_json(stored) == config


@pytest.mark.parametrize(("name", "shown"), [("heads", "heads"), ("a\nb", r"a\\nb"), ("A" * 10**6, f"{'A' * 60}…")])
def test_an_unknown_setting_is_named_in_one_short_line(name, shown):
    with pytest.raises(InputError, match=f"^{shown} is not a setting of this task"):
        ReverseConfig.from_json({name: 8, "lr": 0.25})
