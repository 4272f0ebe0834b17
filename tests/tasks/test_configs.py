"""Settings of the tasks: what is special about a field stays so where a task gives it another default."""

import dataclasses
import importlib
import pkgutil

import pytest

import transformer_jax.tasks
from transformer_jax import TrainingConfig

for module in pkgutil.walk_packages(transformer_jax.tasks.__path__, "transformer_jax.tasks."):
    importlib.import_module(module.name)


def configs_below(config_class: type[TrainingConfig]) -> list[type[TrainingConfig]]:
    below = [c for c in config_class.__subclasses__() if c.__module__.startswith("transformer_jax.tasks.")]
    return [found for c in below for found in (c, *configs_below(c))]


CONFIGS = {config_class.__name__: config_class for config_class in configs_below(TrainingConfig)}


def test_every_task_has_its_settings():
    assert CONFIGS.keys() >= {"ReverseConfig", "AnomalyConfig", "DigitsConfig", "Cifar100Config", "TranslationConfig"}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_with_another_default_keeps_its_marks(name):
    of_task = {field.name: field.metadata for field in dataclasses.fields(CONFIGS[name])}
    overridden = set()
    for base in filter(dataclasses.is_dataclass, CONFIGS[name].__mro__[1:]):
        for field in dataclasses.fields(base):
            assert of_task[field.name] == field.metadata, field.name
            overridden |= {field.name} & CONFIGS[name].__annotations__.keys()
    assert overridden or name == "ReverseConfig"  # otherwise nothing was compared


@pytest.mark.parametrize(
    ("name", "of_model", "neutral"),
    [
        ("ReverseConfig", {"input_dropout_prob"}, set()),
        ("DigitsConfig", {"input_dropout_prob"}, {"data_dir"}),
        ("Cifar100Config", {"input_dropout_prob"}, {"data_dir", "features_dir"}),
        ("TranslationConfig", {"dim_feedforward"}, {"beam_width", "length_penalty"}),
    ],
)
def test_the_marks_of_a_tasks_own_fields(name, of_model, neutral):
    config_class = CONFIGS[name]
    assert config_class.model_fields() == TrainingConfig.model_fields() | of_model
    assert config_class.neutral_fields() == TrainingConfig.neutral_fields() | neutral
