"""What a family of models is: its `config.json` as a model and back, and the names of its arrays."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.argument_checks import Shapes
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.outside_files import Json
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.layouts import Layout

Renames = tuple[tuple[str, str], ...]
# One letter for a projection, or the norm, of queries, keys and values.
LETTERS: Renames = (("query_(proj|norm)", r"q_\1"), ("key_(proj|norm)", r"k_\1"), ("value_(proj|norm)", r"v_\1"))
TIED_HEAD = "lm_head.weight"
# Fields of a model, and the keys that most families have for them.
SIZES = {
    "vocabulary_size": "vocab_size",
    "model_dim": "hidden_size",
    "num_heads": "num_attention_heads",
    "num_layers": "num_hidden_layers",
    "dim_feedforward": "intermediate_size",
    "max_len": "max_position_embeddings",
}


def sizes_of(model: Any, names: Mapping[str, str]) -> Json:  # a model with these fields
    """The entries of a config for the fields of a model, by the names of their keys."""
    return {name: getattr(model, field) for field, name in names.items()}


def labels_of(model: Any) -> Json:  # a model with classes, or without
    """The entry of a config that says how many classes there are."""
    labels = {str(label): f"LABEL_{label}" for label in range(model.num_classes)}
    return {"id2label": labels} if labels else {}


class Family(NamedTuple):
    """Models whose `config.json` has one of these `model_type`s."""

    model_types: tuple[str, ...]
    create: Callable[[ConfigKeys, Shapes], SettingsModule]  # of config.json and of the shapes of the arrays
    configure: Callable[[Any], Json]  # a model of the family; the keys that `create` takes, and `architectures`
    layout: Callable[[Any], Layout]
    prefix: str  # of the arrays of the model without its head, which some files lack
    copies: Mapping[str, str] = {}  # names of arrays that are others once more, which files may have or lack
    ignored: str = "$^"  # regular expression of arrays that are no parameters, or of heads that are not supported
