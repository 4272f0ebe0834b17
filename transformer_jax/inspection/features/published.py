"""Load dictionaries that others have published, in the files of SAELens and of circuit-tracer."""

from collections.abc import Iterable, Set
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax import Array

from transformer_jax.argument_checks import Positive, check_arguments
from transformer_jax.errors import InputError
from transformer_jax.inspection.features.folded import FoldedDictionary
from transformer_jax.inspection.features.transcoders import Transcoders
from transformer_jax.inspection.names import our_name
from transformer_jax.outside_files import (
    MAX_JSON_BYTES,
    Json,
    outside_file,
    read_json,
)
from transformer_jax.weights.files import read_weights

Stored = dict[str, Array]  # arrays of a file by name, in float32
COMMON = {"W_enc", "b_enc", "W_dec", "b_dec"}
PARTS = {"jump": "threshold", "skip": "W_skip"}  # array by a part of the architecture's name
# Values of a config's keys that we compute; the first is the default.
Values = dict[str, tuple[Any, ...]]
SAELENS: Values = {
    "architecture": (
        "standard", "jumprelu", "topk", "transcoder", "skip_transcoder", "jumprelu_transcoder",
        "jumprelu_skip_transcoder",
    ),
    "apply_b_dec_to_input": (True, False),
    "normalize_activations": ("none", "layer_norm", "expected_average_only_in", False, None),
    "rescale_acts_by_decoder_norm": (False, True),
    "activation_fn_str": ("relu",),
    "finetuning_scaling_factor": (False, None),
}  # fmt: skip
# Keys with sizes, and with the origin of a dictionary, in versions 5 and 6.
ANY_VALUE = {
    "d_in", "d_sae", "d_out", "k", "reshape_activations", "metadata", "dtype", "device",
    "model_name", "model_class_name", "model_from_pretrained_kwargs", "hook_name", "hook_layer",
    "hook_head_index", "hook_name_out", "hook_layer_out", "hook_head_index_out", "prepend_bos",
    "exclude_special_tokens", "dataset_path", "dataset_trust_remote_code", "context_size",
    "seqpos_slice", "neuronpedia_id", "activation_fn_kwargs", "sae_lens_version",
    "sae_lens_training_version", "feature_input_hook", "feature_output_hook", "transcoders",
    "scan", "repo_id", "revision", "subfolder",
}  # fmt: skip
TRACER: Values = {
    "model_kind": ("transcoder_set", "cross_layer_transcoder"),
    "activation": (None, "relu", "jump_relu", "topk"),
}


@check_arguments
def load_dictionary(directory: str | Path, *, scale: Positive | None = None) -> FoldedDictionary:
    """Load a sparse autoencoder or transcoder of SAELens: `cfg.json` and `sae_weights.safetensors`.

    Features and outputs are those of SAELens, computed in float32. A dictionary of `hook_z` reads the outputs of all
    heads side by side, `[..., H d]`.

    Args:
        directory: directory of the two files.
        scale: factor that brings the activations to a norm of √D on average; it is folded into the weights, and needed
            if `normalize_activations` is `expected_average_only_in`.

    Raises:
        InputError: a file is missing or damaged; a key of the config or an array is unknown, missing or of another
            shape; a key has a value that is not supported; or `scale` is missing or not needed.
    """
    file = Path(directory) / "cfg.json"
    config = read_json(file)
    _check_config(file, config, SAELENS)
    kind = config["architecture"]
    normalization = config["normalize_activations"]
    if (normalization == "expected_average_only_in") != (scale is not None):
        raise InputError(
            f"scale is {scale}; normalize_activations of {file} is {normalization!r}, and only"
            " 'expected_average_only_in' needs a scale"
        )
    is_transcoder = kind.endswith("transcoder")
    if is_transcoder and config["apply_b_dec_to_input"]:
        raise InputError(f"apply_b_dec_to_input of {file} is true; a transcoder cannot have it")
    needed = {name for part, name in PARTS.items() if part in kind}
    arrays = _arrays([Path(directory) / "sae_weights.safetensors"], COMMON | needed)
    _fold(arrays, config, scale)
    return _dictionary(arrays, config, kind, is_transcoder, normalization == "layer_norm")


@check_arguments
def load_transcoders(directory: str | Path) -> Transcoders:
    """Load the transcoders of all layers in the files of circuit-tracer, as its cache has them, with `config.yaml`.

    Per-layer transcoders are in `layer_0.safetensors` and so on, a cross-layer transcoder in `W_enc_0.safetensors`,
    `W_dec_0.safetensors` and so on. The config names hooks of TransformerLens; for other activations, pass the `layers`
    of the result to `Transcoders.of`. In models whose blocks norm the outputs of sub-layers (Gemma 2 and 3, OLMo 2),
    `hook_mlp_out` of TransformerLens is `decoder.layers.N.feed_forward_output_norm.normalized` here: pass these names.

    Args:
        directory: directory of the files.

    Raises:
        InputError: a file is missing or damaged; a key of the config or an array is unknown, missing or of another
            shape; or a key has a value that is not supported.
    """
    import yaml  # a dependency of Flax

    directory = Path(directory)
    with outside_file(directory / "config.yaml", "a YAML file", MAX_JSON_BYTES) as file:
        config = dict(yaml.safe_load(file.read_bytes()))
    _check_config(file, config, TRACER)
    activation = config["activation"]
    optional = {"W_skip"} if activation in ("relu", "topk") else {"W_skip", "threshold"}
    names = ["layer"] if config["model_kind"] == "transcoder_set" else ["W_enc", "W_dec"]
    num_layers = len(list(directory.glob(f"{names[0]}_*.safetensors")))
    layers = []
    for layer in range(num_layers):
        files = [directory / f"{name}_{layer}.safetensors" for name in names]
        arrays = _arrays(files, COMMON, optional, f"_{layer}")
        arrays["W_enc"] = arrays["W_enc"].T
        if arrays["W_dec"].ndim == 3:  # of a cross-layer transcoder [F, written layers, D]
            _, num_written, width = arrays["W_dec"].shape
            arrays["W_dec"] = arrays["W_dec"].reshape(-1, num_written * width)
            arrays["b_dec"] = jnp.pad(arrays["b_dec"], (0, (num_written - 1) * width))
        layers.append(_dictionary(arrays, config, activation))

    def names_of(hook: str) -> list[str]:
        return [our_name(f"blocks.{layer}.{config.get(hook)}") for layer in range(num_layers)]

    return Transcoders.of(layers, names_of("feature_input_hook"), names_of("feature_output_hook"))


def _fold(arrays: Stored, config: Json, scale: float | None) -> None:
    """Fold the subtracted bias, the decoder's norms and the scale of the activations into a dictionary's arrays.

    It then is `activation(x W_enc + b_enc) W_dec + b_dec`, with `W_enc [D F]` and `W_dec [F D]`.
    """
    if config["apply_b_dec_to_input"]:  # (x - b_dec) W_enc
        arrays["b_enc"] -= arrays["b_dec"] @ arrays["W_enc"]
    if config["architecture"] == "topk" and config["rescale_acts_by_decoder_norm"]:
        norms = jnp.linalg.norm(arrays["W_dec"], axis=1)  # [F]
        arrays["W_enc"] *= norms
        arrays["b_enc"] *= norms
        arrays["W_dec"] /= norms[:, None]
    if scale is not None:
        arrays["W_enc"] *= scale
        arrays["W_dec"] /= scale
        arrays["b_dec"] /= scale
    if "threshold" in arrays:
        arrays["threshold"] = jnp.maximum(arrays["threshold"], 0)  # SAELens applies ReLU, too


def _check_config(file: Path, config: Json, values: Values) -> None:
    """Raise an `InputError` for an unknown key or an unsupported value, and fill in defaults."""
    unknown = sorted(config.keys() - values.keys() - ANY_VALUE)
    if unknown:
        raise InputError(
            f"{file} has unknown keys: {', '.join(unknown)}; remove those that do not change what"
            " is computed"
        )
    for key, allowed in values.items():
        if config.setdefault(key, allowed[0]) not in allowed:
            raise InputError(
                f"{key} of {file} is {config[key]!r}; it must be one of"
                f" {', '.join(map(repr, allowed))}"
            )


def _arrays(
    files: Iterable[Path], needed: Set[str], optional: Set[str] = frozenset(), ending: str = ""
) -> Stored:
    """Read the arrays of files, without an ending of their names."""
    arrays = {}
    for file in files:
        for name, array in read_weights(file).arrays.items():
            name = name.removesuffix(ending).removeprefix("activation_function.")
            if name != "scaling_factor" or (array != 1).any():  # older files have one without use
                arrays[name] = jnp.asarray(array, jnp.float32)
    if not needed <= arrays.keys() <= needed | optional or not _fit(arrays):
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise InputError(
            f"{file} has the arrays {shapes}; it must have {', '.join(sorted(needed))}, of one"
            " number of features"
        )
    return arrays


def _fit(arrays: Stored) -> bool:
    """Whether the arrays have one number of features, and the decoder and its bias one width."""
    bias = arrays["b_enc"]
    decoder = arrays["W_dec"]
    numbers = {len(decoder), len(arrays.get("threshold", bias)), len(bias)}
    have_one_number = len(numbers) == 1 and numbers <= set(arrays["W_enc"].shape)  # [D F], [F D]
    return have_one_number and decoder.shape[-1:] == arrays["b_dec"].shape


def _dictionary(
    arrays: Stored,
    config: Json,
    kind: str | None,
    is_transcoder: bool = True,
    is_normalized: bool = False,
) -> FoldedDictionary:
    """Make a dictionary of arrays named as in SAELens."""
    k = None
    if kind == "topk":
        k = config.get("k")
        num_features = len(arrays["b_enc"])
        if k not in range(1, num_features + 1):
            raise InputError(f"k of the config is {k}; with topk it must be 1 … {num_features}")
    return FoldedDictionary(
        arrays["W_enc"],
        arrays["b_enc"],
        arrays["W_dec"],
        arrays["b_dec"],
        is_transcoder,
        arrays.get("threshold", 0.0),
        k,
        arrays["W_skip"].T if "W_skip" in arrays else None,
        is_normalized,
    )
