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


def test_every_task_has_its_settings():
    assert CONFIGS.keys() >= {
        "ReverseConfig",
        "AnomalyConfig",
        "DigitsConfig",
        "Cifar100Config",
        "FilesConfig",
        "TranslationConfig",
        "LanguageModelConfig",
    }


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
        ("DigitsConfig", {"input_dropout_prob"}, {"data_dir", "features_on"}),
        ("Cifar100Config", {"input_dropout_prob"}, {"data_dir", "features_dir", "features_on"}),
        ("FilesConfig", {"input_dropout_prob"}, {"data_dir", "features_on"}),
        ("TranslationConfig", {"dim_feedforward"}, {"beam_width", "length_penalty"}),
        ("LanguageModelConfig", {"dim_feedforward"}, {"prompt", "max_new", "temperature", "top_k", "top_p"}),
    ],
)
def test_the_marks_of_a_tasks_own_fields(name, of_model, neutral):
    config_class = CONFIGS[name]
    assert config_class.model_fields() == TrainingConfig.model_fields() | of_model
    assert config_class.neutral_fields() == TrainingConfig.neutral_fields() | neutral


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


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ReverseConfig", {"train_size": 10**9}, "train_size is 1000000000, seq_len is 16; the sequences would take"),
        ("ReverseConfig", {"val_size": 10**8, "seq_len": 500}, "val_size is 100000000, seq_len is 500; the sequences"),
        ("ReverseConfig", {"num_categories": 3 * 10**9}, "seq_len is 16, num_categories is 3000000000; one-hot inputs"),
        ("ReverseConfig", {"num_categories": 10**6, "seq_len": 1, "batch_size": 1, "model_dim": 4096}, "the model"),
        ("ReverseConfig", {"seq_len": 5000, "batch_size": 1000}, "seq_len is 5000, num_heads is 1; the attention of"),
        ("TranslationConfig", {"train_size": 10**9}, "train_size is 1000000000; the dates would take 373 GiB"),
        ("TranslationConfig", {"beam_width": 10**5}, "beam_width is 100000, max_bytes is 256; the cache of a search"),
        ("TranslationConfig", {"dim_feedforward": 10**8}, "dim_feedforward is 100000000, model_dim is 128, num_layers"),
        ("TranslationConfig", {"length_penalty": float("nan")}, "length_penalty is nan; it must be at least 0"),
        ("TranslationConfig", {"length_penalty": float("inf")}, "length_penalty is inf; it may be at most 10"),
        ("LanguageModelConfig", {"train_size": 10**12}, "train_size is 1000000000000; the windows' places would take"),
        ("LanguageModelConfig", {"seq_len": 10**9}, "seq_len is 1000000000; the logits would take"),
        ("LanguageModelConfig", {"temperature": float("nan")}, "temperature is nan; it must be a finite number above"),
        ("DigitsConfig", {"set_size": 10**5}, "num_heads is 4, set_size is 100000; the attention of a layer would"),
        (
            "Cifar100Config",
            {"resolution": 10**5},
            "resolution is 100000; it must be at least 1 and may be at most 4096",
        ),
        ("Cifar100Config", {"resolution": 0}, "resolution is 0; it must be at least 1 and may be at most 4096"),
    ],
)
def test_what_no_machine_could_hold_is_refused_and_all_numbers_are_named(name, settings, message):
    with pytest.raises(InputError, match=message):
        CONFIGS[name](**settings)
