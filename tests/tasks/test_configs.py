"""Settings of the tasks: what is special about a field stays so where a task gives it another default."""

import dataclasses
import importlib
import pkgutil

import pytest

import transformer_jax.tasks
from transformer_jax import InputError, TrainingConfig

for module in pkgutil.walk_packages(transformer_jax.tasks.__path__, "transformer_jax.tasks."):
    importlib.import_module(module.name)


def configs_below(config_class: type[TrainingConfig]) -> list[type[TrainingConfig]]:
    below = [c for c in config_class.__subclasses__() if c.__module__.startswith("transformer_jax.tasks.")]
    return [found for c in below for found in (c, *configs_below(c))]


CONFIGS = {config_class.__name__: config_class for config_class in configs_below(TrainingConfig)}


@pytest.mark.parametrize(
    ("name", "of_model", "neutral"),
    [
        ("ReverseConfig", {"input_dropout_prob", "seq_len", "num_categories"}, set()),
        ("DigitsConfig", {"input_dropout_prob"}, {"data_dir", "features_on"}),
        ("Cifar100Config", {"input_dropout_prob"}, {"data_dir", "features_dir", "features_on"}),
        ("FilesConfig", {"input_dropout_prob"}, {"data_dir", "features_on"}),
        (
            "TranslationConfig",
            {"dim_feedforward", "max_bytes", "source_tokenizer", "target_tokenizer", "architecture"},
            {"beam_width", "length_penalty"},
        ),
        (
            "LanguageModelConfig",
            {"dim_feedforward", "seq_len", "tokenizer", "architecture"},
            {"prompt", "max_new", "temperature", "top_k", "top_p"},
        ),
    ],
)
def test_the_marks_of_a_tasks_own_fields(name, of_model, neutral):
    config_class = CONFIGS[name]
    assert config_class.fields_with("of_model") == TrainingConfig.fields_with("of_model") | of_model
    assert config_class.fields_with("neutral") == TrainingConfig.fields_with("neutral") | neutral


OWN_CONFIGS = [name for name in CONFIGS if name != "AnomalyConfig"]  # which only holds what two others share


@pytest.mark.parametrize("exponent", [12, 15, 18, 30, 5000])
@pytest.mark.parametrize("name", OWN_CONFIGS)
def test_every_integer_has_a_bound_and_one_line_says_so(name, exponent):
    for field in dataclasses.fields(CONFIGS[name]):
        if field.type is int:
            with pytest.raises(InputError, match=rf"\b{field.name} is ") as caught:
                CONFIGS[name](**{field.name: 10**exponent})
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 300
