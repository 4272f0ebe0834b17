"""Which settings a task's `create_model` reads: one that it does not read would change nothing, in silence."""

import dataclasses
from collections.abc import Collection
from typing import TypeVar

import flax.linen as nn

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError

Config = TypeVar("Config", bound=TrainingConfig)


def watched(config: Config) -> tuple[Config, set[str]]:
    """A copy of the config, and the names of the settings that are read from the copy, which grow."""
    read: set[str] = set()
    names = {field.name for field in dataclasses.fields(config)}

    class Watched(type(config)):  # type: ignore[misc]  # a base that is known at run time alone
        def __getattribute__(self, name: str) -> object:
            if name in names:
                read.add(name)
            return super().__getattribute__(name)

    copy: Config = object.__new__(Watched)
    copy.__dict__.update(config.__dict__)
    read.clear()
    return copy, read


def check_reads(task: str, config: TrainingConfig, read: Collection[str]) -> None:
    """Raise an `InputError` for a setting of the model that was not read and is not its default.

    Args:
        task: name of the task's class.
        config: its settings.
        read: names of those that `create_model` read.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.metadata.get("of_model") and field.name not in read and value != field.default:
            raise InputError(
                f"{field.name} is {value}, but {task}.create_model does not read it, so that it would change nothing; "
                f"leave it at {field.default}, or read self.config.{field.name} there"
            )


def holding(model: nn.Module, copy: TrainingConfig) -> list[str]:
    """Names of the model's fields that are this copy of the config: such a model may read any setting later."""
    return [field.name for field in dataclasses.fields(model) if getattr(model, field.name, None) is copy]
