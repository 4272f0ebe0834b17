"""A directory of HuggingFace Transformers as a model with its variables, and back."""

import dataclasses
import functools
import json
import re
from collections.abc import Callable, Collection
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from flax.traverse_util import unflatten_dict
from jax.sharding import Sharding
from jax.typing import DTypeLike

from transformer_jax.argument_checks import Shapes, check_arguments, check_arrays, check_shapes, shapes_of
from transformer_jax.errors import InputError, shortened
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.outside_files import Json, as_input_error, read_json, replacing
from transformer_jax.trees import Variables
from transformer_jax.weights.huggingface.albert import ALBERT
from transformer_jax.weights.huggingface.bert import BERT, ROBERTA
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import Family
from transformer_jax.weights.huggingface.gpt2 import GPT2
from transformer_jax.weights.huggingface.gpt_neox import GPT_NEOX
from transformer_jax.weights.huggingface.hub import local_directory
from transformer_jax.weights.huggingface.llama import LLAMA
from transformer_jax.weights.huggingface.marian import MARIAN
from transformer_jax.weights.huggingface.stored_arrays import SINGLE, StoredArrays
from transformer_jax.weights.huggingface.t5 import T5
from transformer_jax.weights.huggingface.vit import VIT
from transformer_jax.weights.layouts import abstract_params, by_path

CONFIG, TOKENIZER = "config.json", "tokenizer.json"  # beside the weights
ALL = GPT2, GPT_NEOX, LLAMA, BERT, ROBERTA, ALBERT, VIT, T5, MARIAN
SHARED_LAYERS = 100  # of a model in which all have the same arrays, at most; other models have arrays for each layer
FAMILIES = {name: family for family in ALL for name in family.model_types}


@check_arguments
def from_transformers(
    directory: str | Path,
    dtype: DTypeLike | None = None,
    sharding: Callable[[str, tuple[int, ...]], Sharding] | None = None,
) -> tuple[SettingsModule, Variables]:
    """The model and the variables of a directory that `save_pretrained` of `transformers` wrote.

    It is called as our models are: `model.apply(variables, tokens)`. Its dropout is 0, whatever the config says;
    `model.clone(dropout_prob=0.1)` has some.

    Args:
        directory: with `config.json` and `model.safetensors`, or several safetensors files with their index; or the
            name of a model on HuggingFace's hub, which is then downloaded.
        dtype: of the variables; None: as they are stored.
        sharding: how an array is split over devices, by its path and shape. A process reads the parts of its own
            devices; where a file has query, key and value in one array, all three. None: whole, on the first device.

    Raises:
        InputError: the directory or a file can't be read, the model is of no family in `FAMILIES`, a key of the config
            could change what the model computes and is not supported, an array is missing or left over, or `dtype` is
            no floating-point type.
    """
    with as_input_error(f"dtype is {shortened(dtype)}; it must be a floating-point type", TypeError, ValueError):
        jnp.finfo(dtype or jnp.float32)  # type: ignore[no-untyped-call]
    directory = local_directory(directory)
    family, keys = _family_in(directory / CONFIG)
    stored = StoredArrays(directory)
    names = _names(family, stored.shapes)
    shapes = {name: stored.shapes[theirs] for name, theirs in names.items()}
    model = family.create(keys, shapes)
    keys.finish()
    num_layers = sum(getattr(model, f"num_{part}layers", 0) for part in ("", "encoder_", "decoder_"))
    if num_layers > max(len(shapes), SHARED_LAYERS):
        raise InputError(f"{directory / CONFIG} says {num_layers} layers; there are {len(shapes)} arrays")
    layout, like = family.layout(model), abstract_params(model)
    expected = layout.abstract(like)
    _drop_copies(family, stored, names, shapes, expected)
    check_shapes(shapes, expected, str(directory))
    params: dict[str, jax.Array] = {}
    largest_first = sorted(layout.names(like).items(), key=lambda named: -expected[named[0]].size)
    for name, paths in largest_first:  # so that two copies are of small ones
        ours = {path: like[path].shape for path in paths}
        read = functools.partial(stored.read, names[name], dtype)
        if sharding is None:
            parts = layout.parts(ours, read())
            params |= {path: jnp.array(part).block_until_ready() for path, part in parts.items()}
            continue
        for path, shape in ours.items():
            part_at = functools.partial(layout.part, ours, path, read=read)
            params[path] = jax.make_array_from_callback(shape, sharding(path, shape), part_at)
    return model, {"params": unflatten_dict(params, sep="/")}


def model_of_config(file: Path) -> SettingsModule:
    """The model of a `config.json`, without parameters. Heads that only the arrays would show are not there.

    Raises:
        InputError: as `from_transformers`.
    """
    family, keys = _family_in(file)
    model = family.create(keys, {})
    keys.finish()
    return model


def _family_in(file: Path) -> tuple[Family, ConfigKeys]:
    config = read_json(file, "a config.json")
    if config.get("model_type") not in tuple(FAMILIES):  # a tuple, since it may be of any type
        kind = shortened(config.get("model_type"))
        raise InputError(f"model_type in {file} is {kind}; it must be one of {', '.join(FAMILIES)}")
    return FAMILIES[config["model_type"]], ConfigKeys(config, str(file))


def is_of_transformers(directory: Path) -> bool:
    """Whether a directory holds a model of HuggingFace Transformers, whose `config.json` has a `model_type`."""
    try:
        return "model_type" in read_json(directory / CONFIG)
    except InputError:
        return False


@check_arguments
def save_transformers(
    directory: str | Path, model: SettingsModule, variables: Variables, *, config: Json | None = None
) -> None:
    """Write a model so that the `from_pretrained` of its class in `transformers` opens it.

    Args:
        directory: made if it is missing; in one with a model of `transformers`, `config.json` and `model.safetensors`
            are replaced, both or none.
        model: one that `from_transformers` gave, or one with the same parts.
        variables: its own.
        config: further entries of `config.json`, such as `eos_token_id`.

    Raises:
        InputError: no family has such models, the config is of another model, the variables are not the model's or not
            finite, or the directory can't be written, or holds anything but a model of `transformers`.
    """
    family, content, like = _family_of(model, config or {})
    if "params" not in variables:
        raise InputError("variables has no 'params'; it must be what from_transformers or the model's init gave")
    arrays = by_path(unstack_layers(variables["params"]))
    check_arrays(arrays, like, "variables")
    dtypes = {str(array.dtype) for array in arrays.values()}
    content["dtype"] = dtypes.pop() if len(dtypes) == 1 else "float32"
    theirs = {name: np.ascontiguousarray(array) for name, array in family.layout(model).to_theirs(arrays).items()}
    written = CONFIG, SINGLE
    with replacing(
        directory, f"a {CONFIG} of transformers", lambda at: written if is_of_transformers(at) else None
    ) as new:
        (new / CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        safetensors.numpy.save_file(theirs, new / SINGLE, metadata={"format": "pt"})


def _names(family: Family, shapes: Shapes) -> dict[str, str]:
    """The names in a file by those of the family; files of a model without its head lack a prefix."""
    lacks_prefix = not any(name.startswith(family.prefix) for name in shapes)
    names: dict[str, str] = {}
    for theirs in shapes:
        name = f"{family.prefix}{theirs}" if lacks_prefix else theirs
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name in names:
            raise InputError(f"{names[name]} and {theirs} are the same array of the model")
        if not re.search(family.ignored, name):
            names[name] = theirs
    return names


def _drop_copies(
    family: Family, stored: StoredArrays, names: dict[str, str], shapes: Shapes, expected: Collection[str]
) -> None:
    """Leave out the arrays that are others once more.

    Raises:
        InputError: they are not the same.
    """
    for copy, original in family.copies.items():
        if copy not in names or copy in expected or original not in names:
            continue
        if not np.array_equal(stored.read(names[copy]), stored.read(names[original])):
            raise InputError(
                f"{names[copy]} in {stored.directory} differs from {names[original]}, whose copy it is in this model"
            )
        del names[copy], shapes[copy]


def _family_of(model: SettingsModule, given: Json) -> tuple[Family, Json, dict[str, jax.ShapeDtypeStruct]]:
    """The family whose `config.json` describes exactly this model, that config with the given entries, and the arrays.

    Raises:
        InputError: there is none.
    """
    settings = dataclasses.replace(
        model.settings,
        dropout_prob=0.0,
        remat="none",
        scan_layers=False,
        attention=dataclasses.replace(model.settings.attention, dropout_prob=0.0, implementation="auto"),
    )
    plain = model.clone(settings=settings, parent=None)
    like = abstract_params(plain)
    for family in ALL:
        try:
            config = {"model_type": family.model_types[0], **family.configure(plain), **given}
            made = family.create(ConfigKeys(config, CONFIG), shapes_of(family.layout(plain).abstract(like)))
        except (ValueError, TypeError, AttributeError, KeyError):  # it has no such key, part or arrays
            continue
        if type(made) is type(plain) and repr(made) == repr(plain):  # by `==` two equal `functools.partial` differ
            return family, config, like
    raise InputError(f"model is no model of {', '.join(FAMILIES)}")
