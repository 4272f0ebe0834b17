"""Import and export of the weights of PyTorch's own attention and Transformer modules.

| here | `torch.nn` |
| --- | --- |
| `MultiheadAttention` | `MultiheadAttention` |
| `EncoderBlock` | `TransformerEncoderLayer` |
| `TransformerEncoder` | `TransformerEncoder` |
| `CausalBlock`, `CausalStack` (`decoder` of a `TransformerLM`) | the same two, called with a causal mask |
| `Transformer` on features | `Transformer` |

The outputs agree if the settings do: PyTorch's default is `BlockSettings(layer_norm_epsilon=1e-5)`, PyTorch's gelu is
the exact one (`approximate=False`), and `torch.nn.Transformer` ends its stacks with a LayerNorm (`final_norm=True`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax.typing import ArrayLike

from transformer_jax.argument_checks import Abstract, as_array, check_arguments, check_arrays
from transformer_jax.errors import InputError
from transformer_jax.nn.attention import AttentionSettings, MultiheadAttention
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.layers import FeedForward, LayerNorm
from transformer_jax.nn.positions import Positions
from transformer_jax.trees import Params, shown
from transformer_jax.weights.files import array_of, read_weights
from transformer_jax.weights.layouts import TORCH_ENDS, Layout, abstract_params, by_path

Model = MultiheadAttention | EncoderBlock | TransformerEncoder | Transformer

LAYOUT = Layout(
    renames=(
        ("(query|key|value)_proj/kernel", "in_proj_weight"),
        ("(query|key|value)_proj/bias", "in_proj_bias"),
        ("output_proj", "out_proj"),
        ("self_attn_residual/norm", "norm1"),
        ("cross_attn_residual/norm", "norm2"),
        ("^(decoder/.*)feed_forward_residual/norm", r"\1norm3"),
        ("feed_forward_residual/norm", "norm2"),
        ("cross_attn", "multihead_attn"),
        ("feed_forward/expand", "linear1"),
        ("feed_forward/contract", "linear2"),
        (r"layers_(\d+)", r"layers/\1"),
        *TORCH_ENDS,
    ),
    transposed=True,
)
# Fields of a Transformer whose decoder has the sizes of its encoder.
SAME_SIZES = {"num_decoder_heads": None, "decoder_dim_feedforward": None}


@check_arguments
def params_from_torch(
    model: Model, weights: Mapping[str, torch.Tensor | ArrayLike] | str | Path
) -> Params:
    """Convert the weights of a PyTorch module to the parameters of its counterpart here.

    Args:
        model: a model of a class in the table above.
        weights: a `state_dict()` of tensors or arrays, or a file to which one was saved. A file is read without running
            any code in it.

    Returns:
        The parameters, for `model.apply({"params": params}, …)`: NumPy arrays in the floating-point type of the
        weights.

    Raises:
        InputError: the model has a part without a counterpart in PyTorch; the file cannot be read, or the weights are
            not those of this model; the message names the first array that is missing, has no counterpart in the
            model, has another shape, or is not finite.
    """
    like = _params_like(model)
    if isinstance(weights, str | Path):
        return LAYOUT.to_ours(read_weights(weights).arrays, like, str(weights))
    arrays = {}
    for name, weight in weights.items():
        array = array_of(weight) if isinstance(weight, torch.Tensor) else as_array(name, weight)
        arrays[name] = np.asarray(array)
    return LAYOUT.to_ours(arrays, like, "the state dict")


@check_arguments
def params_to_torch(model: Model, params: Params) -> dict[str, torch.Tensor]:
    """Convert parameters to the state dict of the PyTorch counterpart, for its `load_state_dict`.

    Args:
        model: a model of a class in the table above.
        params: parameters of the model, e.g. `model.init(…)["params"]`.

    Raises:
        InputError: the model has a part without a counterpart in PyTorch; or the parameters are not those of this
            model, or not finite.
    """
    return state_dict_of(params, _params_like(model))


def state_dict_of(params: Params, like: Abstract) -> dict[str, torch.Tensor]:
    """Copy parameters to a state dict; raise an `InputError` if their paths or shapes differ from `like`."""
    arrays = by_path(params)
    check_arrays(arrays, like, "params")
    return {name: _tensor_of(np.asarray(array)) for name, array in LAYOUT.to_theirs(arrays).items()}


def _params_like(model: Model) -> Abstract:
    """Shapes and types of a model's parameters by path."""
    if isinstance(model, MultiheadAttention):
        _check_attention("settings.", model.settings, model.positions, model.num_heads)
    else:
        check_blocks(model)
    if isinstance(model, Transformer):
        check_parts(
            "",
            model,
            **SAME_SIZES,
            source_vocabulary_size=None,
            target_vocabulary_size=None,
        )
    return abstract_params(model)


def _check_attention(
    prefix: str, attention: AttentionSettings, positions: Positions, num_heads: int
) -> None:
    """Raise an `InputError` unless `torch.nn.MultiheadAttention` has the same projections.

    The dropout of the attention weights is not checked: it affects neither parameters nor predictions.
    """
    if attention.num_kv_heads != num_heads:
        check_parts(prefix, attention, num_kv_heads=None)
    check_parts(
        prefix,
        attention,
        qk_norm=None,
        logit_change=None,
        head_width=None,
        input_bias=True,
        output_bias=True,
        scale=None,
    )
    check_parts("positions.", positions, is_in_attention=False)


def check_blocks(model: Any) -> None:
    """Raise an `InputError` unless PyTorch's encoder and decoder layers compute the same with a model's settings."""
    settings: BlockSettings = model.settings
    _check_attention("settings.attention.", settings.attention, settings.positions, model.num_heads)
    check_parts("settings.", settings, share_layers=False, norm=LayerNorm, feed_forward=FeedForward)
    if settings.dropout_prob > 0:
        check_parts("settings.", settings, drops_hidden=True)


def check_parts(prefix: str, settings: object, **plain: object) -> None:
    """Raise an `InputError` for the first field with another value than `plain`, which PyTorch cannot represent."""
    for name, only in plain.items():
        value = getattr(settings, name)
        if value != only:
            raise InputError(
                f"{prefix}{name} is {shown(value)}; it must be {shown(only)}, the only value with a"
                " counterpart in PyTorch"
            )


def _tensor_of(array: np.ndarray) -> torch.Tensor:
    """Copy of an array as a tensor."""
    if array.dtype == jnp.bfloat16:  # `torch.from_numpy` does not support it
        return torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))
