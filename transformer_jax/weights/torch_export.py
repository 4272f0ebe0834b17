"""Export of a whole model to PyTorch: a source file that needs only PyTorch, and a file of weights."""

import functools
import inspect
import io
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch

from transformer_jax.argument_checks import check_arguments
from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.decoder import DecoderBlock
from transformer_jax.nn.embeddings import EmbeddingSettings
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.position_kinds import SinusoidalPositions
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.outside_files import Json, replacing
from transformer_jax.trees import Params
from transformer_jax.weights import torch_model
from transformer_jax.weights.layouts import TORCH_ENDS, Layout, abstract_params, by_path
from transformer_jax.weights.pytorch import SAME_SIZES, check_blocks, check_parts, state_dict_of

SOURCE, WEIGHTS = "model.py", "weights.pt"  # in the directory of an export

# `torch_model` names its arrays like ours: query, key and value are separate.
LAYOUT = Layout(renames=((r"layers_(\d+)", r"layers/\1"), *TORCH_ENDS), transposed=True)
# Supported activations of the feed-forward; their names are keys of `torch_model.ACTIVATIONS`.
ACTIVATIONS = (nn.relu, nn.gelu, nn.silu, nn.tanh, nn.elu, nn.leaky_relu)


@check_arguments
def export_torch(model: nn.Module, params: Params, directory: str | Path) -> Path:
    """Write a model as a PyTorch module that runs without this package, JAX and Flax.

    The directory gets `model.py`, a file of plain PyTorch with a function `load_model`, and `weights.pt`, the settings
    and the weights in float32. The module takes the model's positional arguments, as tensors, and returns the same
    logits.

        run = load_run("dates")
        export_torch(run.model, run.params, "exported")

    Args:
        model: a `TransformerPredictor`, or a `Transformer` with vocabularies, of the default blocks.
        params: parameters of the model, `run.params` or `model.init(…)["params"]`.
        directory: created if missing; an earlier export in it is replaced.

    Returns:
        The path of `model.py`.

    Raises:
        InputError: the model is of another class or has blocks, parts or an activation without a counterpart; the
            parameters are not those of this model, or not finite; or the directory cannot be written, or holds
            something other than an earlier export.
    """
    content, saved = _content(model, params), io.BytesIO()
    torch.save(content, saved)
    text = inspect.getsource(torch_model)

    def names_of(directory: Path) -> set[str]:
        source = directory / SOURCE
        return (
            {SOURCE, WEIGHTS}
            if source.is_file() and source.read_bytes()[:40] == text[:40].encode()
            else set()
        )

    with replacing(directory, f"a {SOURCE} of an earlier export", names_of) as new:
        (new / WEIGHTS).write_bytes(saved.getvalue())
        (new / SOURCE).write_text(text, encoding="utf-8")
    return Path(directory) / SOURCE


def _content(model: nn.Module, params: Params) -> Json:
    """Content of `weights.pt`: arguments of the exported classes, and the weights."""
    if type(model) is TransformerPredictor:  # a subclass may compute something else
        settings, sizes, inputs = _of_predictor(model, params)
    elif type(model) is Transformer:
        settings, sizes, inputs = _of_transformer(model)
    else:
        kind = type(model).__name__
        raise InputError(
            f"model is a {kind}; it must be a TransformerPredictor or a Transformer, not a subclass"
        )
    check_blocks(model.settings, model.num_heads)
    check_parts("settings.", model.settings, positions=SinusoidalPositions())
    settings |= _numbers(model, "model_dim", "num_heads", "max_len")
    settings |= _numbers(model.settings, "norm_first", "dropout_prob", "layer_norm_epsilon")
    settings["attention_dropout_prob"] = float(model.settings.attention.dropout_prob)
    settings["activation"] = _activation(model.settings)
    weights = state_dict_of(LAYOUT, params, abstract_params(model, *inputs))
    return {
        "settings": settings,
        "sizes": sizes,
        "state_dict": {n: array.float() for n, array in weights.items()},
    }


# settings, sizes, inputs
Described = tuple[dict[str, object], dict[str, object], list[jax.ShapeDtypeStruct]]


def _of_predictor(model: TransformerPredictor, params: Params) -> Described:
    check_parts("", model, block=EncoderBlock, pools=False)
    kernel = by_path(params).get("input_layer/kernel")
    if kernel is None or kernel.ndim != 2 or not kernel.size:
        raise InputError(
            "params has no matrix input_layer/kernel; it must be the parameters of the model"
        )
    sizes = {
        "num_features": len(kernel),
        **_numbers(model, "num_classes", "num_layers", "input_dropout_prob"),
    }
    inputs = [jax.ShapeDtypeStruct((1, 1, len(kernel)), jnp.float32)]
    return (
        {
            "dim_feedforward": 2 * int(model.model_dim),
            "final_norm": bool(model.settings.norm_first),
        },
        sizes,
        inputs,
    )


def _of_transformer(model: Transformer) -> Described:
    check_parts(
        "",
        model,
        encoder_block=EncoderBlock,
        decoder_block=DecoderBlock,
        embeddings=EmbeddingSettings(),
    )
    check_parts("", model, **SAME_SIZES)
    vocabularies = "source_vocabulary_size", "target_vocabulary_size"
    for name in vocabularies:
        if getattr(model, name) is None:
            raise InputError(
                f"{name} is None; it must be a size, since only a Transformer over tokens can be"
                " exported"
            )
    sizes = _numbers(
        model, *vocabularies, "num_encoder_layers", "num_decoder_layers", "tie_embeddings"
    )
    final_norm = model.settings.norm_first if model.final_norm is None else model.final_norm
    settings: dict[str, object] = {
        "dim_feedforward": int(model.dim_feedforward),
        "final_norm": bool(final_norm),
    }
    return settings, sizes, []


def _numbers(of: object, *names: str) -> dict[str, object]:
    """Fields by name, as Python numbers."""
    return {name: np.asarray(getattr(of, name)).item() for name in names}


def _activation(settings: BlockSettings) -> str:
    """Name of the activation in the exported source. Flax's gelu is the approximation by default."""
    match settings.activation:
        case functools.partial(func=nn.gelu, args=(), keywords={"approximate": bool(approximate)}):
            return "gelu" if approximate else "exact_gelu"
        case activation if activation in ACTIVATIONS:
            return activation.__name__
    names = ", ".join(torch_model.ACTIVATIONS)
    raise InputError(f"settings.activation is {settings.activation!r}; it must be one of {names}")
