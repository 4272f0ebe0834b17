"""Settings of the tasks: a field keeps its metadata if a task gives it another default."""

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


@pytest.mark.parametrize("mark", ["defines_model", "keeps_result", "per_machine"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_field_keeps_its_marks_where_a_task_gives_it_another_default(name, mark):
    assert CONFIGS[name].fields_with(mark) >= TrainingConfig.fields_with(mark)


@pytest.mark.parametrize("exponent", [12, 5000])
@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - {"AnomalyConfig"}))  # which only holds what others share
def test_every_integer_has_a_bound_and_one_line_says_so(name, exponent):
    for field in dataclasses.fields(CONFIGS[name]):
        if field.type is int:
            with pytest.raises(InputError, match=rf"\b{field.name} is ") as caught:
                CONFIGS[name](**{field.name: 10**exponent})
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 300
