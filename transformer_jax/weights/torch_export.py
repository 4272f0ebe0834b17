"""Export of a whole model to PyTorch: a file of source that needs PyTorch alone, and its weights beside it."""

import functools
import io
from collections.abc import Callable
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import torch

from transformer_jax.errors import InputError, check_path
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.decoder import DecoderBlock
from transformer_jax.nn.encoder import EncoderBlock
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trees import Params
from transformer_jax.weights import torch_models
from transformer_jax.weights.counterparts import check_exported
from transformer_jax.weights.layouts import Layout, abstract_params, by_path, check_arrays, shapes_of
from transformer_jax.weights.torch_source import FIRST_LINE, TorchModel, source_of

SOURCE, WEIGHTS = "model.py", "weights.pt"  # in the directory of an export

# The names in `torch_blocks` and `torch_models`, which follow ours: query, key and value stay apart.
LAYOUT = Layout(
    renames=((r"layers_(\d+)", r"layers/\1"), ("(kernel|scale|embedding)$", "weight"), ("/", ".")),
    transposed=True,
)

# Activations of the feed-forward, and their modules in PyTorch. Flax's gelu approximates unless told otherwise.
ACTIVATIONS = {
    nn.relu: "nn.ReLU()",
    nn.gelu: 'nn.GELU(approximate="tanh")',
    nn.silu: "nn.SiLU()",
    nn.tanh: "nn.Tanh()",
    nn.elu: "nn.ELU()",
    nn.leaky_relu: "nn.LeakyReLU()",
}


def export_torch(model: nn.Module, params: Params, directory: str | Path) -> Path:
    """Write a model as a PyTorch module that runs without this package, JAX and Flax.

    The directory gets `model.py`, a file of plain PyTorch with a function `load_model`, and `weights.pt`, the weights
    in float32. The module takes the model's positional arguments, as tensors, and gives the same logits.

        run = load_run("dates")
        export_torch(run.model, run.params, "exported")

    Args:
        model: a `TransformerPredictor`, or a `Transformer` with vocabularies, of the default blocks.
        params: its parameters, `run.params` or `model.init(…)["params"]`.
        directory: is made where it is missing; an earlier export in it is replaced.

    Returns:
        The path of `model.py`.

    Raises:
        InputError: the model is of another class or has blocks, parts or an activation without a counterpart; the
            parameters are not those of this model, or not finite; or the directory cannot be written, or has another
            `model.py`.
    """
    check_path("directory", directory, "the path of a directory")
    source, weights = source_of(_torch_model(model, params)), io.BytesIO()
    torch.save(_state_dict(model, params), weights)
    directory = Path(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _check_replaceable(directory / SOURCE)
        (directory / WEIGHTS).write_bytes(weights.getvalue())
        (directory / SOURCE).write_text(source, encoding="utf-8")
    except InputError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path, or a lone surrogate
        raise InputError(
            f"directory is {str(directory)!r}; it must be a directory that can be written ({error})"
        ) from error
    return directory / SOURCE


def _torch_model(model: nn.Module, params: Params) -> TorchModel:
    """The counterpart of a model.

    Raises:
        InputError: it has none.
    """
    if type(model) is TransformerPredictor:  # a subclass may compute something else
        return _predictor(model, _num_features(params))
    if type(model) is Transformer:
        return _encoder_decoder(model)
    raise InputError(
        f"model is a {type(model).__name__}; it must be a TransformerPredictor or a Transformer, and no subclass"
    )


def _predictor(model: TransformerPredictor, num_features: int) -> TorchModel:
    _check_block("block", model.block, EncoderBlock)
    return TorchModel(
        torch_models.TransformerPredictor,
        _block_settings(model.settings, model.model_dim, model.num_heads, 2 * model.model_dim),
        _literals(
            num_features=num_features,
            final_norm=bool(model.settings.norm_first),
            **_fields(model, "num_classes", "num_layers", "input_dropout_prob", "max_len"),
        ),
        call=f"model(x)  # features [B, T, {num_features}] -> [B, T, {model.num_classes}]",
    )


def _encoder_decoder(model: Transformer) -> TorchModel:
    _check_block("encoder_block", model.encoder_block, EncoderBlock)
    _check_block("decoder_block", model.decoder_block, DecoderBlock)
    vocabularies = ("source_vocabulary_size", "target_vocabulary_size")
    for name in vocabularies:
        if getattr(model, name) is None:
            raise InputError(
                f"{name} is None; it must be a size, as only a model over tokens is exported whole (for one on "
                "features, params_to_torch gives the weights of a torch.nn.Transformer)"
            )
    return TorchModel(
        torch_models.Transformer,
        _block_settings(model.settings, model.model_dim, model.num_heads, model.dim_feedforward),
        _literals(
            final_norm=bool(model.settings.norm_first if model.final_norm is None else model.final_norm),
            tie_embeddings=bool(model.tie_embeddings),
            **_fields(model, *vocabularies, "num_encoder_layers", "num_decoder_layers", "max_len"),
        ),
        call=f"model(source, target, source_mask)  # ids [B, S] and [B, T] -> [B, T, {model.target_vocabulary_size}]",
        imports="import math\n",
    )


def _check_block(name: str, block: type, exported: type) -> None:
    if block is not exported:
        raise InputError(f"{name} is {block.__name__}; it must be {exported.__name__}, the only one that is exported")


def _block_settings(settings: BlockSettings, model_dim: int, num_heads: int, dim_feedforward: int) -> dict[str, str]:
    """Arguments of the exported `BlockSettings`, as source."""
    check_exported(settings, num_heads)
    literals = _literals(
        model_dim=model_dim,
        num_heads=num_heads,
        dim_feedforward=dim_feedforward,
        norm_first=bool(settings.norm_first),
        **_fields(settings, "dropout_prob", "layer_norm_epsilon"),
    )
    return literals | {"activation": _activation(settings.activation)}


def _activation(activation: Callable[[jax.Array], jax.Array]) -> str:
    """The module of an activation, as source."""
    match activation:
        case functools.partial(func=nn.gelu, args=(), keywords={"approximate": bool(approximate)}):
            return ACTIVATIONS[nn.gelu] if approximate else "nn.GELU()"
        case _ if activation in ACTIVATIONS:
            return ACTIVATIONS[activation]
    names = ", ".join(function.__name__ for function in ACTIVATIONS)
    raise InputError(
        f"settings.activation is {activation!r}; it must be one of flax.linen's {names}, or "
        "functools.partial(gelu, approximate=False)"
    )


def _fields(settings: object, *names: str) -> dict[str, int | float]:
    return {name: getattr(settings, name) for name in names}


def _literals(**numbers: int | float) -> dict[str, str]:
    """Numbers as source."""
    return {name: repr(np.asarray(number).item()) for name, number in numbers.items()}


def _state_dict(model: nn.Module, params: Params) -> dict[str, torch.Tensor]:
    """Weights of the exported module.

    Raises:
        InputError: the parameters are not those of the model, or not finite.
    """
    tokens = jax.ShapeDtypeStruct((1, 1), jnp.int32)
    if isinstance(model, Transformer):
        like = abstract_params(model, tokens, tokens)
    else:
        like = abstract_params(model, jax.ShapeDtypeStruct((1, 1, _num_features(params)), jnp.float32))
    check_arrays(by_path(params), shapes_of(like), "params")
    return {
        name: torch.from_numpy(np.array(array, np.float32, order="C"))
        for name, array in LAYOUT.to_theirs(params).items()
    }


def _num_features(params: Params) -> int:
    """Width of a predictor's input, from the kernel of its first layer."""
    kernel = by_path(params).get("input_layer/kernel")
    if kernel is None or kernel.ndim != 2 or not kernel.size:
        raise InputError("params has no matrix input_layer/kernel; it must be the parameters of the model")
    return int(kernel.shape[0])


def _check_replaceable(path: Path) -> None:
    """Raise an `InputError` if there is a file that is no earlier export."""
    if path.exists() and not path.read_bytes().startswith(FIRST_LINE.encode()):
        raise InputError(
            f"directory is {str(path.parent)!r}, which has a {path.name} of another origin; it must be another one"
        )
