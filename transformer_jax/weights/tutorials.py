"""Import of the tutorials' checkpoints, Flax's and PyTorch Lightning's, as a `TransformerPredictor`.

Their trees have our model's structure under other names, with one projection for query, key and value of each head.
"""

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.errors import InputError
from transformer_jax.nn.blocks import BlockSettings
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.trees import Params
from transformer_jax.weights.files import WeightFile, read_weights
from transformer_jax.weights.layouts import Layout, per_head

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
    ("(kernel|scale)$", "weight"),
    ("/", "."),
)


def load_tutorial_weights(path: str | Path, *, num_heads: int | None = None) -> tuple[TransformerPredictor, Params]:
    """Read a model and its parameters from a checkpoint of the tutorials.

    Sizes are inferred from the arrays' shapes. A Lightning file has the dropout probabilities too; a Flax file does
    not, and the model's are 0.

    Args:
        path: a Flax msgpack of parameters (`save_checkpoint`), or a PyTorch Lightning checkpoint.
        num_heads: H; needed for files without it, as all of Flax's are.

    Returns:
        The model, and its parameters, for `model.apply({"params": params}, …)`: NumPy arrays.

    Raises:
        InputError: the file cannot be read or is not one of the tutorials'; the message names the first array that is
            missing, has no counterpart in the model, has another shape or is not finite; or `num_heads` is missing,
            differs from the file's, or does not divide the width.
    """
    file = read_weights(path)
    model, num_features = _model_of(file, num_heads, str(path))
    like = _shapes(model, num_features)
    return model, tutorial_layout(file.is_torch, model.num_heads).to_ours(file.arrays, like, str(path))


def tutorial_layout(is_torch: bool, num_heads: int) -> Layout:
    """Layout of the tutorials' models in PyTorch or in Flax."""
    return Layout(LIGHTNING_RENAMES if is_torch else FLAX_RENAMES, per_head(num_heads), transposed=is_torch)


def _shapes(model: TransformerPredictor, num_features: int) -> Params:
    """Shapes of a model's parameters. One layer is traced in the place of all, which may be thousands."""
    x = jax.ShapeDtypeStruct((1, 1, num_features), jnp.float32)
    like: dict[str, Any] = jax.eval_shape(model.clone(num_layers=1).init, jax.random.key(0), x)["params"]
    layers = {f"layers_{i}": like["encoder"]["layers_0"] for i in range(model.num_layers)}
    return {**like, "encoder": {**like["encoder"], **layers}}


def _model_of(file: WeightFile, num_heads: int | None, source: str) -> tuple[TransformerPredictor, int]:
    """Model whose parameters a file holds, and the number of its input features."""
    sizes, stored = _sizes(file, source), file.hyperparameters
    for name, size in sizes.items():
        if stored.get(name, size) != size:
            raise InputError(f"{name} in {source} is {stored[name]}, but its arrays have {name} {size}")
    model_dim, num_classes, num_layers = sizes["model_dim"], sizes["num_classes"], sizes["num_layers"]
    num_heads = _num_heads(num_heads, stored.get("num_heads"), source, model_dim)
    input_dropout_prob = _probability(stored, "input_dropout", source)
    settings = BlockSettings(
        dropout_prob=_probability(stored, "dropout", source),
        layer_norm_epsilon=1e-5 if file.is_torch else 1e-6,  # the defaults of PyTorch and of Flax
    )
    try:
        model = TransformerPredictor(
            model_dim, num_classes, num_heads, num_layers, None, input_dropout_prob, settings=settings
        )
    except InputError as error:  # heads that do not divide the width
        raise InputError(f"{source}: {error}") from error
    return model, sizes["input_dim"]


def _sizes(file: WeightFile, source: str) -> dict[str, int]:
    """Sizes that the arrays' shapes imply, by the tutorials' names of hyperparameters."""
    layout = tutorial_layout(file.is_torch, num_heads=1)  # names do not depend on the heads

    def kernel_shape(path: str) -> tuple[int, int]:
        name = layout.name(path)
        if name not in file.arrays or file.arrays[name].ndim != 2 or not file.arrays[name].size:
            raise InputError(f"{source} is not a model of the tutorials: it has no matrix {name}")
        inputs, outputs = file.arrays[name].shape[:: -1 if layout.transposed else 1]
        return inputs, outputs

    input_dim, model_dim = kernel_shape("input_layer/kernel")
    layers = (layout.name(f"encoder/layers_{i}/self_attn/query_proj/kernel") for i in itertools.count())
    return {
        "input_dim": input_dim,
        "model_dim": model_dim,
        "num_classes": kernel_shape("output_layer/kernel")[1],
        # At least one, so that a file without layers gives an error that names an array.
        "num_layers": max(1, sum(1 for _ in itertools.takewhile(file.arrays.__contains__, layers))),
    }


def _num_heads(given: int | None, stored: Any, source: str, model_dim: int) -> int:
    """Number of heads from the argument or from the file, which must agree if both have it."""
    if stored is not None and not isinstance(stored, int):
        raise InputError(f"num_heads in {source} is {stored!r}; it must be a whole number")
    if given is not None and stored is not None and given != stored:
        raise InputError(f"num_heads is {given}; that of {source} is {stored}")
    num_heads = stored if given is None else given
    if num_heads is None:
        raise InputError(f"num_heads is None, and {source} does not contain it; it must divide {model_dim}")
    return num_heads


def _probability(stored: dict[str, Any], name: str, source: str) -> float:
    value = stored.get(name, 0.0)
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"{name} in {source} is {value!r}; it must be at least 0 and below 1")
    return float(value)
