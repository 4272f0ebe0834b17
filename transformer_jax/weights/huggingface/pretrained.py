"""Load a directory of HuggingFace Transformers as a model with its variables."""

import re
from collections.abc import Callable, Collection
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.sharding import Sharding
from jax.typing import DTypeLike

from transformer_jax.argument_checks import Probability, Shapes, check_arguments, check_shapes
from transformer_jax.errors import InputError, shortened
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.outside_files import Json, as_input_error, read_json
from transformer_jax.trees import Variables
from transformer_jax.weights.huggingface.albert import ALBERT
from transformer_jax.weights.huggingface.bart import BART
from transformer_jax.weights.huggingface.bert import BERT, ROBERTA, is_first_bert
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.distilbert import DISTILBERT
from transformer_jax.weights.huggingface.family import Family
from transformer_jax.weights.huggingface.gpt2 import GPT2
from transformer_jax.weights.huggingface.gpt_neox import GPT_NEOX
from transformer_jax.weights.huggingface.hub import local_directory
from transformer_jax.weights.huggingface.llama import DECODERS
from transformer_jax.weights.huggingface.marian import MARIAN
from transformer_jax.weights.huggingface.mpnet import MPNET
from transformer_jax.weights.huggingface.stored_arrays import StoredArrays
from transformer_jax.weights.huggingface.t5 import MT5, T5
from transformer_jax.weights.huggingface.vit import VIT
from transformer_jax.weights.layouts import abstract_params

CONFIG, TOKENIZER = "config.json", "tokenizer.json"  # beside the weights
SENTENCE_CONFIG = "config_sentence_transformers.json"  # of a model of `sentence-transformers`
ALL = (
    GPT2, GPT_NEOX, *DECODERS, BERT, ROBERTA, ALBERT, DISTILBERT, MPNET, VIT, T5, MT5, BART, MARIAN,
)  # fmt: skip
FAMILIES = {name: family for family in ALL for name in family.model_types}


@check_arguments
def from_transformers(
    directory: str | Path,
    dtype: DTypeLike | None = None,
    sharding: Callable[[str, tuple[int, ...]], Sharding] | None = None,
) -> tuple[SettingsModule, Variables]:
    """Load a model and its variables from a directory written by `save_pretrained` of `transformers`.

    Call it like our other models: `model.apply(variables, tokens)`. Its dropout is 0, whatever the config says;
    `model.clone(dropout_prob=0.1)` turns dropout on.

    Args:
        directory: directory with `config.json` and `model.safetensors`, or several safetensors files with their index;
            or the name of a model on HuggingFace's hub, which is then downloaded.
        dtype: type of the variables; None keeps the stored types.
        sharding: function from the path and shape of an array to its sharding. A process reads one array at a time,
            and keeps the parts on its own devices. None: whole arrays, on the first device.

    Raises:
        InputError: the directory or a file cannot be read, the model's family is not in `FAMILIES`, a key of the config
            could change what the model computes and is not supported, an array is missing or left over, or `dtype` is
            not a floating-point type.
    """
    with as_input_error(
        f"dtype is {shortened(dtype)}; it must be a floating-point type", TypeError, ValueError
    ):
        jnp.finfo(dtype or jnp.float32)  # type: ignore[no-untyped-call]
    directory = local_directory(directory)
    family, keys = family_in(directory / CONFIG)
    stored = StoredArrays(directory)
    names, shapes = _family_names(family, stored.shapes)
    model = family.create(keys, shapes)
    keys.finish()

    # The arrays must be exactly those of the model.
    layout = family.layout(model)
    like = abstract_params(model)
    expected = layout.abstract(like)
    _drop_copies(family, stored, names, shapes, expected)
    for name in shapes.keys() - expected.keys():
        if re.search(family.ignored, name):
            del shapes[name]
    check_shapes(shapes, expected, f"{keys.architecture or 'the model'} in {directory}")
    params: dict[str, jax.Array] = {}
    paths_of = layout.names(like)
    # The largest first, so that only small arrays exist twice when memory is nearly full.
    for name in sorted(paths_of, key=lambda name: -expected[name].size):
        array = stored.read(names[name], dtype)
        our_shapes = {path: like[path].shape for path in paths_of[name]}
        for path, part in layout.parts(our_shapes, array).items():
            if sharding is None:
                params[path] = jnp.array(part).block_until_ready()
            else:
                sharding_of_part = sharding(path, part.shape)
                params[path] = jax.make_array_from_callback(
                    part.shape, sharding_of_part, part.__getitem__
                )
    return model, {"params": unflatten_dict(params, sep="/")}


def model_of_config(file: Path) -> SettingsModule:
    """The model of a `config.json`, without parameters, and without heads that only the arrays would reveal.

    Raises:
        InputError: as `from_transformers`.
    """
    family, keys = family_in(file)
    model = family.create(keys, {})
    keys.finish()
    return model


def dropout_of(file: Path) -> dict[str, float]:
    """The settings of dropout in the `config.json` of an encoder, or the defaults of its family in `transformers`.

    Raises:
        InputError: the file cannot be read, or a value is not a probability.
    """
    keys = ConfigKeys.of_file(file)
    default = 0.0 if keys.take("model_type", str, "") == "albert" else 0.1
    dropout = keys.take("dropout", Probability, default)  # of DistilBERT
    attention = keys.take("attention_dropout", Probability, default)
    return {
        "dropout_prob": keys.take("hidden_dropout_prob", Probability, dropout),
        "attention_dropout": keys.take("attention_probs_dropout_prob", Probability, attention),
    }


def model_of_files(directory: Path) -> SettingsModule:
    """The model of a directory with its head, without reading its arrays.

    Raises:
        InputError: as `from_transformers`.
    """
    family, keys = family_in(directory / CONFIG)
    _, shapes = _family_names(family, StoredArrays(directory).shapes)
    model = family.create(keys, shapes)
    keys.finish()
    return model


def family_in(file: Path) -> tuple[Family, ConfigKeys]:
    """The family of a model and the keys of its config, from a `config.json`.

    Raises:
        InputError: the file cannot be read, or its `model_type` is not in `FAMILIES`.
    """
    config = _read_config(file)
    # a tuple, since the value may be unhashable
    if config.get("model_type") not in tuple(FAMILIES):
        kind = shortened(config.get("model_type"))
        raise InputError(f"model_type in {file} is {kind}; it must be one of {', '.join(FAMILIES)}")
    return FAMILIES[config["model_type"]], ConfigKeys(config, str(file))


def _read_config(file: Path) -> Json:
    """The content of a `config.json`; the first BERTs lack a `model_type`, which is added."""
    config = read_json(file, "a config.json")
    is_bert = "model_type" not in config and is_first_bert(config)
    return config | {"model_type": "bert"} if is_bert else config


def is_of_transformers(directory: Path) -> bool:
    """Whether a directory holds a model of HuggingFace Transformers, as its `config.json` says."""
    try:
        return "model_type" in _read_config(directory / CONFIG)
    except InputError:
        return False


def _family_names(family: Family, stored_shapes: Shapes) -> tuple[dict[str, str], Shapes]:
    """Names in the files, and shapes, by the family's array names; files without a head may lack its prefix."""
    lacks_prefix = not any(name.startswith(family.prefix) for name in stored_shapes)
    names: dict[str, str] = {}
    shapes: Shapes = {}
    for stored_name, shape in stored_shapes.items():
        name = f"{family.prefix}{stored_name}" if lacks_prefix else stored_name
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        name = name.replace("LayerNorm.beta", "LayerNorm.bias")
        if name in names:
            raise InputError(f"{names[name]} and {stored_name} are the same array of the model")
        names[name] = stored_name
        shapes[name] = shape
    return names, shapes


def _drop_copies(
    family: Family,
    stored: StoredArrays,
    names: dict[str, str],
    shapes: Shapes,
    expected: Collection[str],
) -> None:
    """Leave out the arrays that duplicate others; a file may have a duplicate only.

    Raises:
        InputError: a duplicate differs from its original.
    """
    for copy, original in family.copies.items():
        if copy not in shapes or copy in expected:
            continue
        if original not in shapes:
            names[original] = names[copy]
            shapes[original] = shapes.pop(copy)
            continue
        if not np.array_equal(stored.read(names[copy]), stored.read(names[original])):
            raise InputError(
                f"{names[copy]} in {stored.directory} differs from {names[original]}; in this model"
                " they must be equal"
            )
        del shapes[copy]
