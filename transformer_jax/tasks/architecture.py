"""The setting `architecture` of a task: a model defined by the `config.json` of a HuggingFace model."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from transformer_jax.config import TrainingConfig
from transformer_jax.errors import InputError
from transformer_jax.fields import type_hints
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.outside_files import read_json
from transformer_jax.runs.directory import kept_file
from transformer_jax.setting_groups import ModelSettings
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.pretrained import model_of_config

ARCHITECTURE = "architecture.json"  # in the directory of a run

# Settings that the `config.json` replaces; with `init_from` the sizes are the model's own, unless they are given.
SIZES = {"model_dim", "num_heads", "num_layers", "dim_feedforward"}
PARTS = {*type_hints(ModelSettings)} - SIZES - {"dropout_prob", "attention_dropout", "attention"}

Model = TypeVar("Model", TransformerLM, TransformerMLM, Transformer)


class Architecture(NamedTuple):
    """A `config.json`."""

    file: Path

    def model(self, kind: type[Model], config: TrainingConfig, setting: str, length: int) -> Model:
        """Create the model, with the dropout, layer loop and attention implementation of the run's config.

        Args:
            kind: class that the model must have.
            config: the run's config.
            setting: name of the setting that limits the length of a text.
            length: number of tokens of the longest text.

        Raises:
            InputError: as `model_of_config`; or the model has another class than `kind`, or takes only shorter texts.
        """
        model = model_of_config(self.file)
        if not isinstance(model, kind):
            raise InputError(
                f"architecture is {self.file}, a {type(model).__name__}; it must be a"
                f" {kind.__name__}"
            )
        if model.max_len < length:
            value = getattr(config, setting)
            raise InputError(
                f"{setting} is {value}; the model of {self.file} takes at most {model.max_len}"
                " tokens"
            )
        attention = dataclasses.replace(
            model.settings.attention,
            dropout_prob=config.attention_dropout,
            implementation=config.attention,
        )
        settings = dataclasses.replace(
            model.settings,
            attention=attention,
            dropout_prob=config.dropout_prob,
            remat=config.remat,
            scan_layers=config.scan_layers,
        )
        return model.clone(settings=settings)

    def check_vocabulary(self, setting: str, tokens: int, size: int | None) -> None:
        """Raise an `InputError` if the model's vocabulary is smaller than that of a setting's tokenizer."""
        if (size or 0) < tokens:
            raise InputError(
                f"{setting} has {tokens} tokens; the model of {self.file} has only {size}"
            )

    def text(self) -> str:
        """Content of the file, for `model_files`."""
        return json.dumps(read_json(self.file, "a config.json"), indent=2) + "\n"

    def token(self, name: str) -> int:
        """Token id under a key of the file.

        Raises:
            InputError: the key is missing or has no id.
        """
        return int(ConfigKeys.of_file(self.file).take(name, int))


def idle_with(config: Any) -> dict[str, str]:  # of a task with the setting
    """Settings that have no effect with an architecture, each with the reason."""
    if config.architecture is None:
        return {}
    names = PARTS if config.init_from else SIZES | PARTS
    return dict.fromkeys(names, "architecture is given, which defines the model")


def architecture_of(file: Path | None, config: TrainingConfig, task: str) -> Architecture | None:
    """The architecture in a file, or in the run's copy if the file is gone; None if no file is set."""
    if file is None:
        return None
    return Architecture(file if file.exists() else kept_file(config, task, ARCHITECTURE) or file)
