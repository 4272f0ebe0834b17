"""Export of models in the format of HuggingFace Transformers."""

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import jax

from transformer_jax.argument_checks import check_arguments, check_arrays, shapes_of
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import SettingsModule
from transformer_jax.nn.layer_stacks import unstack_layers
from transformer_jax.outside_files import Json, replacing, write_arrays
from transformer_jax.trees import Variables
from transformer_jax.weights.huggingface.config_keys import ConfigKeys
from transformer_jax.weights.huggingface.family import Family
from transformer_jax.weights.huggingface.hub import local_directory
from transformer_jax.weights.huggingface.pretrained import (
    ALL,
    CONFIG,
    FAMILIES,
    family_in,
    is_of_transformers,
)
from transformer_jax.weights.huggingface.stored_arrays import SINGLE
from transformer_jax.weights.layouts import abstract_params, by_path

# Names of the files of `transformers` and `sentence-transformers`, as patterns. The files of the tokenizer,
# the generation settings, the chat template and the pooling are copied from the original model.
COPIED = (
    "tokenizer*", "vocab.*", "merges.txt", "*.spm", "*.model", "special_tokens_map.json", "added_tokens.json",
    "chat_template*", "generation_config.json", "*processor_config.json",
    "modules.json", "sentence_*_config.json", "config_sentence_transformers.json", "[0-9]_[A-Z]*",
)  # fmt: skip
REPLACED = (
    *COPIED, CONFIG, "model*.safetensors*", "pytorch_model*", "tf_model*", "flax_model*",
    "adapter_*", "training_args.bin",
)  # fmt: skip
STAYING = {"README.md", "LICENSE", "LICENSE.txt"}
# entries never copied
OF_FILES = {"architectures", "dtype", "model_type", "torch_dtype", "transformers_version"}
LABELS = {"id2label", "label2id", "num_labels"}  # entries copied if the number of classes agrees


@check_arguments
def save_transformers(
    directory: str | Path,
    model: SettingsModule,
    variables: Variables,
    *,
    original: str | Path | None = None,
    config: Json | None = None,
) -> None:
    """Write a model that `transformers` loads with `from_pretrained` of its class.

    With `original`, `load_transformers` loads the directory too, and it can replace the original:

        save_transformers("tuned", model, variables, original="gpt2")

    Args:
        directory: created if missing. A model of `transformers` in it is replaced as a whole, or not
            at all: weights of PyTorch, TensorFlow and Flax, their parts and adapters, tokenizer,
            generation, processors and pooling. `README.md`, `LICENSE`, `LICENSE.txt` and hidden files
            stay.
        model: a model from `from_transformers`, or one built from the same parts.
        variables: the model's variables.
        original: directory or hub name of the original model. Its tokenizer, its
            `generation_config.json`, the pooling of `sentence-transformers`, and those entries of its
            `config.json` that do not affect the computation, such as the ids of special tokens and the
            names of classes, are copied. None copies nothing.
        config: further entries of `config.json`, such as `eos_token_id`; they take precedence.

    Raises:
        InputError: no family has such a model, the original or the config is of another model, the variables are not
            the model's or not finite, or the directory cannot be written or has another file.
    """
    source = None if original is None else local_directory(original)
    original_family = None
    families = ALL
    kept: Json = {}
    if source is not None:
        original_family, kept = _kept_entries(source)
        families = (original_family, *ALL)  # first, since models of two families may be the same
    family, content, like = family_of(model, kept, config or {}, families)
    if original_family is not None and family != original_family:
        raise InputError(
            f"original is {original}, a model of another family; it must be a"
            f" {family.model_types[0]}"
        )
    if "params" not in variables:
        raise InputError(
            "variables has no 'params'; it must be the result of from_transformers or the model's"
            " init"
        )
    arrays = by_path(unstack_layers(variables["params"]))
    check_arrays(arrays, like, "variables")
    dtypes = {str(array.dtype) for array in arrays.values()}
    content["dtype"] = "float32"
    if len(dtypes) == 1:
        [content["dtype"]] = dtypes
    with replacing(directory, f"a {CONFIG} of transformers", _names_of, STAYING) as new:
        if source is not None:
            for path in _matching(source, COPIED):
                copy = shutil.copytree if path.is_dir() else shutil.copyfile
                copy(path, new / path.name)
        (new / CONFIG).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
        theirs = family.layout(model).to_theirs(arrays)
        write_arrays(new / SINGLE, theirs, metadata={"format": "pt"})


def _names_of(directory: Path) -> set[str]:
    """Names of the files of a `transformers` model; none if the directory does not hold one."""
    if not is_of_transformers(directory):
        return set()
    return {path.name for path in _matching(directory, REPLACED)}


def _matching(directory: Path, patterns: tuple[str, ...]) -> set[Path]:
    """Paths in a directory whose names match one of the patterns."""
    paths: set[Path] = set()
    return paths.union(*map(directory.glob, patterns))


def _kept_entries(directory: Path) -> tuple[Family, Json]:
    """The family of a `config.json`, and the entries that affect neither the computation nor how it is stored."""
    family, keys = family_in(directory / CONFIG)
    family.create(keys, {})
    keys.finish()
    kept = {name: value for name, value in keys.others().items() if name not in OF_FILES}
    return family, kept


def family_of(
    model: SettingsModule, kept: Json, given: Json, families: Sequence[Family] = ALL
) -> tuple[Family, Json, dict[str, jax.ShapeDtypeStruct]]:
    """Find the family whose `config.json` describes exactly this model; return it, the whole config, and the arrays.

    Args:
        model: the model.
        kept: entries of the original; its labels are left out if their number differs from the model's.
        given: entries that take precedence.
        families: those that are tried, in this order.

    Raises:
        InputError: no family describes the model, or a given entry could change what the model computes.
    """
    settings = dataclasses.replace(
        model.settings,
        dropout_prob=0.0,
        remat="none",
        scan_layers=False,
        drops_hidden=True,
        attention=dataclasses.replace(
            model.settings.attention, dropout_prob=0.0, implementation="auto"
        ),
    )
    without_dropout = model.clone(settings=settings, parent=None)
    like = abstract_params(without_dropout)
    for family in families:
        try:
            config = {"model_type": family.model_types[0], **family.configure(without_dropout)}
            labels_agree = len(kept.get("id2label") or ()) == len(config.get("id2label", ()))
            for name, value in kept.items():
                if labels_agree or name not in LABELS:
                    config[name] = value
            config |= given
            keys = ConfigKeys(config, CONFIG)
            their_arrays = family.layout(without_dropout).abstract(like)
            created = family.create(keys, shapes_of(their_arrays))
            # families differ in this setting, which has no effect without dropout
            created = created.clone(
                settings=dataclasses.replace(created.settings, drops_hidden=True)
            )
        # The family has no such key, part or array.
        except (ValueError, TypeError, AttributeError, KeyError):
            continue
        # `==` is False for equal `functools.partial`s
        if type(created) is type(without_dropout) and repr(created) == repr(without_dropout):
            keys.finish()
            return family, config, like
    raise InputError(f"model is not a model of {', '.join(FAMILIES)}")
