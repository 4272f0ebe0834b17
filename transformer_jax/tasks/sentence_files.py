"""Text embeddings as the files of `sentence-transformers` describe them: pooling, further layers, longest text."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from transformer_jax.argument_checks import Size, check_shapes
from transformer_jax.errors import InputError
from transformer_jax.nn.masked_language_model import Pooling
from transformer_jax.outside_files import MAX_JSON_BYTES, outside_file
from transformer_jax.tasks.tokenization import import_extra
from transformer_jax.weights.huggingface.config_keys import TORCH_ACTIVATIONS, ConfigKeys
from transformer_jax.weights.huggingface.pretrained import CONFIG, SENTENCE_CONFIG
from transformer_jax.weights.huggingface.stored_arrays import StoredArrays

MODULES, TOKENIZER_CONFIG = "modules.json", "tokenizer_config.json"
# Classes of the modules, separated by spaces, without the package and its parts.
SUPPORTED = re.compile("Transformer Pooling( Dense| Normalize)*")
# Poolings by their names, and by the flags of older files.
POOLINGS: dict[str, Pooling] = {
    "cls": "first",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "lasttoken": "last",
}
FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
# Keys that could change the vectors, with the supported values; the first value is the default.
CHECKED: dict[str, tuple[object, ...]] = {
    "default_prompt_name": (None,),
    "truncate_dim": (None,),
    "transformer_task": ("feature-extraction",),
    "module_input_name": ("sentence_embedding",),
    "module_output_name": ("sentence_embedding", "token_embeddings", None),
    "use_residual": (False,),
    "config_args": (None, {}),
    "config_kwargs": (None, {}),
    "tokenizer_args": (None, {}),
    "processor_kwargs": (None, {}),
}

Vectors = Float[np.ndarray, "texts _"]
Layer = Callable[[Vectors], Vectors]


class Embedding(NamedTuple):
    """How texts become vectors."""

    tokenizer: Any  # of the library `tokenizers`
    pooling: Pooling
    layers: list[Layer]  # applied to the pooled vectors


def unit_length(vectors: Vectors) -> Vectors:
    """Divide vectors by their lengths."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def read_embedding(directory: Path, tokenizer: Any, width: int, longest: int) -> Embedding:
    """Read how a model embeds texts; without `modules.json` it takes the mean, with length 1.

    Args:
        directory: directory of the model.
        tokenizer: tokenizer of the model, from the library `tokenizers`.
        width: width of the encoder's outputs.
        longest: the most tokens that the model takes.

    Raises:
        InputError: a file cannot be read, or has a module or a key that is not supported.
    """
    file = directory / MODULES
    if not os.path.lexists(file):
        return Embedding(tokenizer, "mean", [unit_length])
    with outside_file(file, "a list of modules", MAX_JSON_BYTES) as checked:
        modules = json.loads(checked.read_bytes())
        kinds = [
            re.sub(r"^sentence_transformers\.(.*\.)?", "", module["type"]) for module in modules
        ]
        folders = [directory / Path(module["path"]).name for module in modules]
    if not SUPPORTED.fullmatch(" ".join(kinds)) or folders[0] != directory:
        raise InputError(
            f"{file} has the modules {', '.join(kinds)}; they must be a Transformer without a path,"
            " a Pooling, and any number of Dense and Normalize"
        )
    _checked_keys(directory / SENTENCE_CONFIG)
    pooling = read_pooling(folders[1] / CONFIG)
    layers: list[Layer] = []
    for kind, folder in zip(kinds[2:], folders[2:], strict=True):
        keys = _checked_keys(folder / CONFIG)
        if kind == "Normalize":
            layers.append(unit_length)
        else:
            keys.one_of("in_features", width)
            width = keys.take("out_features", Size)
            layers.append(_dense(folder, keys))
    return Embedding(_tokenizer(directory, tokenizer, longest), pooling, layers)


def _checked_keys(file: Path) -> ConfigKeys:
    keys = ConfigKeys.of_file(file)
    for name, supported in CHECKED.items():
        keys.one_of(name, *supported)
    return keys


def read_pooling(file: Path) -> Pooling:
    """Read the pooling of a module's `config.json`; an `InputError` if it is not supported."""
    keys = _checked_keys(file)
    flagged = [name for flag, name in FLAGS.items() if keys.take(flag, bool, False)] or ["mean"]
    # several poolings are not supported
    mode = flagged[0] if len(flagged) == 1 else flagged
    newer_keys = ConfigKeys({"pooling_mode": mode, **keys.others()}, str(file))
    return POOLINGS[newer_keys.one_of("pooling_mode", *POOLINGS)]


def _dense(folder: Path, keys: ConfigKeys) -> Layer:
    """A linear layer with its activation."""
    activation = TORCH_ACTIVATIONS[keys.one_of("activation_function", *TORCH_ACTIVATIONS)]
    shape = keys.take("out_features", Size), keys.take("in_features", Size)
    has_bias = keys.take("bias", bool, True)
    expected = {"linear.weight": jax.ShapeDtypeStruct(shape, jnp.float32)}
    if has_bias:
        expected["linear.bias"] = jax.ShapeDtypeStruct(shape[:1], jnp.float32)
    stored = StoredArrays(folder)
    check_shapes(stored.shapes, expected, str(folder))
    kernel = stored.read("linear.weight", "float32")
    bias = stored.read("linear.bias", "float32") if has_bias else 0.0

    def dense(vectors: Vectors) -> Vectors:
        return np.asarray(activation(jnp.asarray(vectors @ kernel.T + bias)))

    return dense


def _tokenizer(directory: Path, tokenizer: Any, longest: int) -> Any:
    """A copy of a tokenizer that cuts texts to the length in the model's files."""
    files = sorted(directory.glob("sentence_*_config.json"))  # named after the family
    keys = _checked_keys(files[0] if files else directory / "sentence_bert_config.json")
    tokenizer_keys = ConfigKeys.of_file(directory / TOKENIZER_CONFIG)
    tokenizer_keys.one_of("truncation_side", "right")
    length = keys.take("max_seq_length", Size | None, None)
    if length is None:
        length = tokenizer_keys.others().get("model_max_length")
    if not isinstance(length, int) or not 0 < length < longest:
        length = longest
    library = import_extra("tokenizers")
    copied = library.Tokenizer.from_str(tokenizer.to_str())
    copied.enable_truncation(length)
    if keys.take("do_lower_case", bool, False):
        normalizers = [library.normalizers.Lowercase()]
        if copied.normalizer is not None:
            normalizers.append(copied.normalizer)
        copied.normalizer = library.normalizers.Sequence(normalizers)
    return copied
