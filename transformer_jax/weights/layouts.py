"""Layouts: names and arrangement of a model's arrays in other programs, in one table for import and export.

Parameters are nested dictionaries. A path joins their keys: `encoder/layers_0/self_attn/query_proj/kernel`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Shaped

from transformer_jax.argument_checks import Abstract, Shapes, as_array, check_arrays
from transformer_jax.errors import InputError
from transformer_jax.nn.attention import MultiheadAttention
from transformer_jax.nn.decoder import DecoderBlock, TransformerDecoder
from transformer_jax.nn.encoder import EncoderBlock, TransformerEncoder
from transformer_jax.nn.encoder_decoder import Transformer
from transformer_jax.nn.language_model import TransformerLM
from transformer_jax.nn.masked_language_model import TransformerMLM
from transformer_jax.nn.predictor import TransformerPredictor
from transformer_jax.nn.vision import VisionTransformer
from transformer_jax.trees import Params

Arrays: TypeAlias = dict[str, np.ndarray]  # by name
Leaf: TypeAlias = np.ndarray | jax.Array  # `jax.Array` when `abstract` traces the shapes
Kernels: TypeAlias = Sequence[Shaped[Leaf, "*inputs D"]]  # of query, key and value, or their biases
_TOKENS = jax.ShapeDtypeStruct((1, 1), jnp.int32)
# Last renames of every PyTorch layout: `weight` for kernels, scales and embeddings, and dots between keys.
TORCH_ENDS = (("(kernel|scale|embedding)$", "weight"), ("/", "."))


def fuse(parts: Kernels, num_groups: int) -> Shaped[Leaf, "*inputs fused"]:
    """Fuse the projections of query, key and value, each of width D, into one of width 3 D.

    Its columns are query, key and value of the first group of D / `num_groups` columns, then of the second, and so on.
    """
    *inputs, width = parts[0].shape
    # [*inputs groups D/groups]
    groups = [part.reshape(*inputs, num_groups, width // num_groups) for part in parts]
    library = groups[0].__array_namespace__()  # JAX if only the shapes are traced
    fused = library.concat(groups, axis=-1)  # [*inputs groups 3·D/groups]
    return fused.reshape(*inputs, 3 * width)


def split(whole: Shaped[np.ndarray, "*inputs fused"], num_groups: int) -> list[np.ndarray]:
    """Split a fused projection into query, key and value; the inverse of `fuse`."""
    *inputs, width = whole.shape
    groups = whole.reshape(*inputs, num_groups, width // num_groups)
    return [part.reshape(*inputs, width // 3) for part in np.split(groups, 3, axis=-1)]


class Layout(NamedTuple):
    """Names and arrangement of our arrays in another program."""

    # regular expressions and replacements, applied to our path in order
    renames: tuple[tuple[str, str], ...]
    transposed: bool  # kernels are [out, in], as in PyTorch; ours are [in, out]
    # of columns, if `renames` fuses query, key and value (see `fuse`): H if they alternate by head
    num_groups: int = 1
    reshaped: Mapping[str, tuple[int, ...]] = {}  # by our path: their shape before transposing

    def name(self, path: str) -> str:
        """Name of our array in the other program."""
        for pattern, replacement in self.renames:
            path = re.sub(pattern, replacement, path)
        return path

    def names(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Our paths by name in the other program: one path, or three if query, key and value are fused."""
        paths_by_name: dict[str, list[str]] = {}
        # query before key and value
        for path in sorted(paths, key=lambda path: path.replace("query_proj", "a_proj")):
            paths_by_name.setdefault(self.name(path), []).append(path)
        return paths_by_name

    def abstract(self, like: Abstract) -> Abstract:
        """Compute shapes and types of the other program's arrays, without allocating them.

        Args:
            like: our parameters by path.
        """
        return jax.eval_shape(self.to_theirs, like)

    def to_theirs(self, arrays: Mapping[str, Leaf]) -> dict[str, Leaf]:
        """Convert our arrays by path to the other program's by name."""
        theirs = {}
        for name, paths in self.names(arrays).items():
            first_path = paths[0]
            array = arrays[first_path]
            if len(paths) > 1:
                array = fuse([arrays[path] for path in paths], self.num_groups)
            if first_path in self.reshaped:
                array = array.reshape(self.reshaped[first_path])
            theirs[name] = array.T if self._is_transposed(first_path) else array
        return theirs

    def to_ours(self, arrays: Arrays, like: Abstract, source: str) -> Params:
        """Convert the other program's arrays to our parameters: copies, in the same floating-point type.

        Args:
            arrays: the other program's arrays by name.
            like: our parameters by path.
            source: name of the file or object that holds the arrays, for error messages.

        Raises:
            InputError: as `check_arrays` does.
        """
        check_arrays(arrays, self.abstract(like), source)
        ours: Arrays = {}
        for name, paths in self.names(like).items():
            parts = self.parts({path: like[path].shape for path in paths}, arrays[name])
            ours |= {path: np.array(part, order="C") for path, part in parts.items()}
        return unflatten_dict(ours, sep="/")

    def parts(self, shapes: Shapes, whole: np.ndarray) -> Arrays:
        """Our arrays with these paths and shapes, from one array of the other program: views if possible."""
        path, *_ = shapes
        if self._is_transposed(path):
            whole = whole.T
        parts = split(whole, self.num_groups) if len(shapes) > 1 else [whole]
        return {path: part.reshape(shapes[path]) for path, part in zip(shapes, parts, strict=True)}

    def _is_transposed(self, path: str) -> bool:
        """Whether our array is [in, out] and theirs [out, in]; an embedding [V, D] is the same in both."""
        return self.transposed and path.endswith("kernel")


def abstract_params(model: nn.Module, *inputs: object) -> Abstract:
    """Shapes and types of a model's parameters by path.

    Args:
        model: the model.
        inputs: arguments of the model's call, or their shapes and types; by default those of `example_inputs`.
    """
    inputs = inputs or example_inputs(model)
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    return flatten_dict(variables["params"], sep="/")


def example_inputs(model: nn.Module) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Shapes and types of inputs for a call of this model. They have length 1, which every `max_len` allows.

    Raises:
        InputError: the inputs cannot be derived from the model's fields.
    """
    match model:
        case Transformer():
            sizes = model.source_vocabulary_size, model.target_vocabulary_size
            embedded = _features(1, model.model_dim)
            return tuple(embedded if size is None else _TOKENS for size in sizes)
        case TransformerLM() | TransformerMLM():
            return (_TOKENS,)
        case VisionTransformer():
            return (_features(*model.image_size, model.num_channels),)
        case TransformerDecoder() | DecoderBlock():
            features = _features(1, model.input_dim)
            return features, features
        case TransformerEncoder() | EncoderBlock():
            return (_features(1, model.input_dim),)
        case MultiheadAttention():
            return (_features(1, model.embed_dim),)
        case TransformerPredictor():
            return (_features(1, 1),)  # its input layer takes features of any width
    raise InputError(f"{type(model).__name__} needs inputs: activation_names(model, *inputs)")


def _features(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((1, *shape), jnp.float32)


def by_path(params: Params) -> Arrays:
    """A model's parameters by path.

    Raises:
        InputError: `params` is the whole result of `model.init`, instead of the dictionaries under
            its key "params"; or a leaf is not an array, see `as_array`.
    """
    if set(params) == {"params"}:
        raise InputError(
            "params has only the key 'params'; it must be the dictionary under that key"
        )
    arrays = flatten_dict(params, sep="/")
    return {path: np.asarray(as_array(path, leaf)) for path, leaf in arrays.items()}
