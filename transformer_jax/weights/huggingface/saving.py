"""Models written as HuggingFace Transformers reads them."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import safetensors.numpy

from transformer_jax.argument_checks import check_arguments, check_arrays, shapes_of
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.outside_files import Json, replacing
from transformer_jax.trees import Variables
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import Family
from transformer_jax.weights.huggingface.hub import local_directory
from transformer_jax.weights.huggingface.pretrained import ALL, CONFIG, FAMILIES, family_in, is_of_transformers
from transformer_jax.weights.huggingface.stored_arrays import SINGLE
from transformer_jax.weights.layouts import abstract_params, by_path

# Files of a tokenizer and of generation, and entries of a config that another model or other files do not take over.
KEPT_FILES = (
    "tokenizer*", "vocab.*", "merges.txt", "*.spm", "*.model", "special_tokens_map.json", "added_tokens.json",
    "chat_template*", "generation_config.json", "preprocessor_config.json",
)  # fmt: skip
OF_FILES = {"architectures", "dtype", "model_type", "torch_dtype", "transformers_version"}
LABELS = {"id2label", "label2id", "num_labels"}


@check_arguments
def save_transformers(
    directory: str | Path,
    model: SettingsModule,
    variables: Variables,
    *,
    original: str | Path | None = None,
    config: Json | None = None,
) -> None:
    """Write a model so that the `from_pretrained` of its class in `transformers` opens it.

    With `original`, what is written can be opened by `load_transformers` too, and be used in the place of the original:

        save_transformers("tuned", model, variables, original="gpt2")

    Args:
        directory: made if it is missing; in one with a model of `transformers`, `config.json` and `model.safetensors`
            are replaced, both or none.
        model: one that `from_transformers` gave, or one with the same parts.
        variables: its own.
        original: directory or name on the hub of the model that it was: its tokenizer, its `generation_config.json`
            and the entries of its `config.json` that say nothing about what is computed, such as the ids of special
            tokens and the names of classes, are written too. None: none of them.
        config: further entries of `config.json`, such as `eos_token_id`; they win.

    Raises:
        InputError: no family has such models, the original or the config is of another model, the variables are not the
            model's or not finite, or the directory can't be written, or holds anything but a model of `transformers`.
    """
    source = None if original is None else local_directory(original)
    family, content, like = _family_of(model, {} if source is None else _kept_entries(source), config or {})
    if source is not None and family_in(source / CONFIG)[0] is not family:
        raise InputError(f"original is {original}, which is of another family than the model, {family.model_types[0]}")
    if "params" not in variables:
        raise InputError("variables has no 'params'; it must be what from_transformers or the model's init gave")
    arrays = by_path(unstack_layers(variables["params"]))
    check_arrays(arrays, like, "variables")
    dtypes = {str(array.dtype) for array in arrays.values()}
    content["dtype"] = dtypes.pop() if len(dtypes) == 1 else "float32"
    theirs = {name: np.ascontiguousarray(array) for name, array in family.layout(model).to_theirs(arrays).items()}
    files = [path for kind in KEPT_FILES if source for path in source.glob(kind) if path.is_file()]
    written = {CONFIG, SINGLE, *(path.name for path in files)}
    with replacing(
        directory, f"a {CONFIG} of transformers", lambda at: written if is_of_transformers(at) else None
    ) as new:
        for path in files:
            shutil.copyfile(path, new / path.name)
        (new / CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        safetensors.numpy.save_file(theirs, new / SINGLE, metadata={"format": "pt"})


def _kept_entries(directory: Path) -> Json:
    """The entries of a `config.json` that say nothing about what the model computes and how it is stored."""
    family, keys = family_in(directory / CONFIG)
    family.create(keys, {})
    keys.finish()
    return {name: value for name, value in keys.others().items() if name not in OF_FILES}


def _family_of(model: SettingsModule, kept: Json, given: Json) -> tuple[Family, Json, dict[str, jax.ShapeDtypeStruct]]:
    """The family whose `config.json` describes exactly this model, that config with further entries, and the arrays.

    Args:
        model: whose family.
        kept: entries of an original, of whose labels the number may be another.
        given: entries that win.

    Raises:
        InputError: there is none, or a given entry could change what the model computes.
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
            config = {"model_type": family.model_types[0], **family.configure(plain)}
            has_labels = len(kept.get("id2label") or ()) == len(config.get("id2label", ()))
            config |= {name: value for name, value in kept.items() if has_labels or name not in LABELS} | given
            keys = ConfigKeys(config, CONFIG)
            made = family.create(keys, shapes_of(family.layout(plain).abstract(like)))
        except (ValueError, TypeError, AttributeError, KeyError):  # it has no such key, part or arrays
            continue
        if type(made) is type(plain) and repr(made) == repr(plain):  # by `==` two equal `functools.partial` differ
            keys.finish()
            return family, config, like
    raise InputError(f"model is no model of {', '.join(FAMILIES)}")
