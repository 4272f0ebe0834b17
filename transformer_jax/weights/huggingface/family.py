"""Model families: conversion between `config.json` and our models, and the names of the arrays."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.argument_checks import Shapes
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import WORDS, ConfigKeys
from transformer_jax.weights.layouts import Layout

Renames = tuple[tuple[str, str], ...]
# Single letters for the projections and norms of queries, keys and values.
LETTERS: Renames = (
    ("query_(proj|norm)", r"q_\1"),
    ("key_(proj|norm)", r"k_\1"),
    ("value_(proj|norm)", r"v_\1"),
)
TIED_HEAD = "lm_head.weight"
# Ends of the names of classes of `transformers` that only some families support.
KNOWN_HEADS = (
    "EncoderModel", "ForCausalLM", "ForMultipleChoice", "ForNextSentencePrediction", "ForQuestionAnswering",
    "ForSequenceClassification", "ForTokenClassification",
)  # fmt: skip
# Fields of a model, and their config keys in most families.
SIZES = {
    "vocabulary_size": "vocab_size",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "dim_feedforward": "intermediate_size",
    "max_len": "max_position_embeddings",
}
# Fields and keys of most models to write.
KEYS = SIZES | {
    "settings.activation": "hidden_act",
    "settings.layer_norm_epsilon": "layer_norm_eps",
}


def config_of(model: Any, architecture: str, keys: Mapping[str, str]) -> Json:
    """Config entries for the fields of a model, and for its number of classes, if it has any.

    Args:
        model: a model with these fields.
        architecture: its class in `transformers`.
        keys: keys of the config, by the paths of the fields, such as `settings.activation`.
    """
    config: Json = {"architectures": [architecture]}
    for path, key in keys.items():
        value = operator.attrgetter(path)(model)
        if callable(value):  # an activation
            value = WORDS[value]
        config[key] = value
    num_classes = getattr(model, "num_classes", 0)
    if num_classes:
        config["id2label"] = {str(label): f"LABEL_{label}" for label in range(num_classes)}
    return config


class Family(NamedTuple):
    """Models whose `config.json` has one of these `model_type`s."""

    model_types: tuple[str, ...]
    # the model, from a config.json and the arrays' shapes
    build: Callable[[ConfigKeys, Shapes], SettingsModule]
    # the config, from a model: the keys that `build` takes, and `architectures`
    configure: Callable[[Any], Json]
    layout: Callable[[Any], Layout]
    prefix: str  # of all array names outside the head; files without a head may lack it
    # duplicate arrays that some files have: name of the copy, of the original
    copies: Mapping[str, str] = {}
    # ends of the names of the supported classes of `transformers`
    heads: tuple[str, ...] = ("ForCausalLM", "LMHeadModel", "Model")
    # pattern of arrays that a file may have beside the model's: buffers and other heads
    ignored: str = "$^"
    # config keys of which only one value is supported, the default
    fixed: Mapping[str, object] = {}
    # other names of config keys in `transformers`; a file with both must give both the same value
    aliases: Mapping[str, str] = {}

    def create(self, keys: ConfigKeys, shapes: Shapes) -> SettingsModule:
        """Create the model of a `config.json` and of arrays with these shapes.

        Raises:
            InputError: a key is missing or invalid, or the class in the file is not supported.
        """
        name = keys.architecture
        if name.endswith(KNOWN_HEADS) and not name.endswith(self.heads):
            raise InputError(
                f"architectures in {keys.source} is {name}; it must end in one of"
                f" {', '.join(self.heads)}"
            )
        for name, only_value in self.fixed.items():
            keys.one_of(name, only_value)
        for name, other in self.aliases.items():
            keys.same(name, other)
        return self.build(keys, shapes)
