"""Export of a whole model to PyTorch: a source file that needs only PyTorch, and a file of weights."""

import functools
import inspect
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
from transformer_jax.outside_files import Json, check_written, replacing
from transformer_jax.trees import Params
from transformer_jax.weights import torch_model
from transformer_jax.weights.layouts import abstract_params, by_path
from transformer_jax.weights.pytorch import (
    SAME_SIZES,
    check_blocks,
    check_parts,
    state_dict_of,
)

SOURCE, WEIGHTS = "model.py", "weights.pt"  # in the directory of an export

# Supported activations of the feed-forward; their names are keys of `torch_model.ACTIVATIONS`.
ACTIVATIONS = (nn.relu, nn.gelu, nn.silu, nn.tanh, nn.elu, nn.leaky_relu)


@check_arguments
def export_torch(model: nn.Module, params: Params, directory: str | Path) -> Path:
    """Write a model as a PyTorch module that runs without this package, JAX and Flax.

    The directory gets `model.py`, a file of plain PyTorch with a function `load_model`, and `weights.pt`, the settings
    and the weights in float32. The module takes the model's positional arguments, as tensors, and returns the same
    logits.

        trained = load_run("dates")
        export_torch(trained.model, trained.params, "exported")

    Args:
        model: a `TransformerPredictor`, or a `Transformer` with vocabularies, of the default blocks.
        params: parameters of the model, `trained.params` or `model.init(…)["params"]`.
        directory: created if missing; an earlier export in it is replaced.

    Returns:
        The path of `model.py`.

    Raises:
        InputError: the model is of another class or has blocks, parts or an activation without a counterpart; the
            parameters are not those of this model, or not finite; or the directory cannot be written, or holds
            something other than an earlier export.
    """
    content = _content(model, params)
    text = inspect.getsource(torch_model)

    def names_of(directory: Path) -> set[str]:
        source = directory / SOURCE
        is_export = source.is_file() and source.read_bytes()[:40] == text[:40].encode()
        return {SOURCE, WEIGHTS} if is_export else set()

    with replacing(directory, f"a {SOURCE} of an earlier export", names_of) as new:
        torch.save(content, new / WEIGHTS)
        read = torch.load(new / WEIGHTS, weights_only=True)
        check_written(new / WEIGHTS, content["state_dict"], read["state_dict"])
        (new / SOURCE).write_text(text, encoding="utf-8")
    return Path(directory) / SOURCE


def _content(model: nn.Module, params: Params) -> Json:
    """Content of `weights.pt`: arguments of the exported classes, and the weights."""
    if type(model) is TransformerPredictor:  # a subclass may compute something else
        sizes = _sizes_of_predictor(model, params)
        inputs = [jax.ShapeDtypeStruct((1, 1, sizes["num_features"]), jnp.float32)]
    elif type(model) is Transformer:
        sizes = _sizes_of_transformer(model)
        inputs = []
    else:
        raise InputError(
            f"model is a {type(model).__name__}; it must be a TransformerPredictor or a Transformer, not a"
            " subclass"
        )
    check_blocks(model)
    check_parts("settings.", model.settings, positions=SinusoidalPositions())
    final_norm = getattr(model, "final_norm", None)
    if final_norm is None:
        final_norm = model.settings.norm_first
    settings = {
        **_numbers(model, "model_dim", "num_heads", "max_len"),
        **_numbers(model.settings, "norm_first", "dropout_prob", "layer_norm_epsilon"),
        "dim_feedforward": int(getattr(model, "dim_feedforward", 2 * model.model_dim)),
        "final_norm": bool(final_norm),
        "attention_dropout_prob": float(model.settings.attention.dropout_prob),
        "activation": _activation(model.settings),
    }
    weights = state_dict_of(params, abstract_params(model, *inputs))
    return {
        "settings": settings,
        "sizes": sizes,
        "state_dict": {name: tensor.float() for name, tensor in weights.items()},
    }


def _sizes_of_predictor(model: TransformerPredictor, params: Params) -> Json:
    """Arguments of the exported `TransformerPredictor`; an `InputError` if it has other parts."""
    check_parts("", model, block=EncoderBlock, pools=False)
    kernel = by_path(params).get("input_layer/kernel", np.ones(1))  # `state_dict_of` checks it
    return {
        "num_features": len(np.atleast_1d(kernel)),
        **_numbers(model, "num_classes", "num_layers", "input_dropout_prob"),
    }


def _sizes_of_transformer(model: Transformer) -> Json:
    """Arguments of the exported `Transformer`; an `InputError` if it has other parts or no vocabularies."""
    check_parts(
        "",
        model,
        encoder_block=EncoderBlock,
        decoder_block=DecoderBlock,
        **SAME_SIZES,
        embeddings=EmbeddingSettings(),
    )
    vocabularies = "source_vocabulary_size", "target_vocabulary_size"
    sizes = _numbers(
        model, *vocabularies, "num_encoder_layers", "num_decoder_layers", "tie_embeddings"
    )
    for name in vocabularies:
        if sizes[name] is None:
            raise InputError(
                f"{name} is None; it must be a size, since only a Transformer over tokens can be"
                " exported"
            )
    return sizes


def _numbers(settings: object, *names: str) -> Json:
    """Fields by name, as Python numbers."""
    return {name: np.asarray(getattr(settings, name)).item() for name in names}


def _activation(settings: BlockSettings) -> str:
    """Name of the activation in the exported source. Flax's gelu is the approximation by default."""
    match settings.activation:
        case functools.partial(func=nn.gelu, args=(), keywords={"approximate": bool(approximate)}):
            return "gelu" if approximate else "exact_gelu"
        case activation if activation in ACTIVATIONS:
            return activation.__name__
    names = ", ".join(torch_model.ACTIVATIONS)
    raise InputError(f"settings.activation is {settings.activation!r}; it must be one of {names}")
