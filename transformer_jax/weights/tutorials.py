"""Import of the tutorials' checkpoints, Flax's and PyTorch Lightning's, as a `TransformerPredictor`.

Their parameters have the structure of ours, with other names and query, key and value of each head fused.
"""

import re
from pathlib import Path

import jax
import jax.numpy as jnp

from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trees import Params
from transformer_jax.weights.files import read_weights
from transformer_jax.weights.layouts import TORCH_ENDS, Arrays, Layout, abstract_params

FLAX_RENAMES = (
    ("^encoder/", "transformer/"),
    ("(query|key|value)_proj", "qkv_proj"),
    ("self_attn/output_proj", "self_attn/o_proj"),
    ("feed_forward/expand", "linear_0"),
    ("feed_forward/contract", "linear_3"),
    ("self_attn_residual/norm", "norm1"),
    ("feed_forward_residual/norm", "norm2"),
    ("^output_hidden", "output_net_0"),
    ("^output_norm", "output_net_1"),
    ("^output_layer", "output_net_4"),
)
LIGHTNING_RENAMES = (
    *FLAX_RENAMES,
    ("^input_layer", "input_net_1"),
    ("linear_", "linear_net_"),
    (r"_(\d+)/", r"/\1/"),
    *TORCH_ENDS,
)
FLAX = Layout(FLAX_RENAMES, transposed=False)
LIGHTNING = Layout(LIGHTNING_RENAMES, transposed=True)


def load_tutorial_weights(
    path: str | Path, *, num_heads: int | None = None
) -> tuple[TransformerPredictor, Params]:
    """Read a model and its parameters from a checkpoint of the tutorials.

    Sizes are inferred from the arrays' shapes. A Lightning file has the dropout probabilities too; a Flax file does
    not, and the model's are 0.

    Args:
        path: a Flax msgpack of parameters (`save_checkpoint`), or a PyTorch Lightning checkpoint.
        num_heads: H; required if the file does not record it, as no Flax file does.

    Returns:
        The model, and its parameters, for `model.apply({"params": params}, …)`: NumPy arrays.

    Raises:
        InputError: the file cannot be read or is not one of the tutorials'; the message names the first array that is
            missing, has no counterpart in the model, has another shape or is not finite; or `num_heads` is missing,
            differs from the file's, or does not divide the width.
    """
    file = read_weights(path)
    source = str(path)
    is_lightning = "output_net.4.weight" in file.arrays
    layout = LIGHTNING if is_lightning else FLAX
    num_features, model_dim = _kernel_shape(file.arrays, layout, "input_layer/kernel", source)
    _, num_classes = _kernel_shape(file.arrays, layout, "output_layer/kernel", source)
    layers: set[str] = set()  # their names
    for name in file.arrays:
        layers.update(re.findall(r"layers[._]\d+", name))
    stored = file.hyperparameters
    heads = stored.get("num_heads", num_heads)
    if heads is None:
        raise InputError(
            f"num_heads is None, and {source} does not contain it; it must divide {model_dim}"
        )
    if num_heads not in (None, heads):
        raise InputError(f"num_heads is {num_heads}; that of {source} is {heads}")
    settings = BlockSettings(
        dropout_prob=stored.get("dropout", 0.0),
        layer_norm_epsilon=1e-5 if is_lightning else 1e-6,  # the defaults of PyTorch and of Flax
    )
    model = TransformerPredictor(
        model_dim,
        num_classes,
        heads,
        max(1, len(layers)),  # so that a file without layers is an error that names an array
        input_dropout_prob=stored.get("input_dropout", 0.0),
        settings=settings,
    )
    like = abstract_params(model, jax.ShapeDtypeStruct((1, 1, num_features), jnp.float32))
    layout = layout._replace(num_groups=heads)
    return model, layout.to_ours(file.arrays, like, source)


def _kernel_shape(arrays: Arrays, layout: Layout, path: str, source: str) -> tuple[int, int]:
    """Widths of the inputs and of the outputs of a kernel of ours, from a file's array."""
    name = layout.name(path)
    kernel = arrays.get(name)
    if kernel is None or kernel.ndim != 2 or not kernel.size:
        raise InputError(f"{source} is not a model of the tutorials: it has no matrix {name}")
    inputs, outputs = kernel.T.shape if layout.transposed else kernel.shape
    return inputs, outputs
