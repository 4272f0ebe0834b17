"""Layouts: other programs' names for a model's arrays and their arrangement, one table for both directions.

Trees of parameters are nested dictionaries. A path joins their keys: `encoder/layers_0/self_attn/query_proj/kernel`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import flax.linen as nn
import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Shaped

from transformer_jax.argument_checks import check_numbers
from transformer_jax.errors import InputError
from transformer_jax.trees import Params

Arrays: TypeAlias = dict[str, np.ndarray]  # by name
Shapes: TypeAlias = dict[str, tuple[int, ...]]
Index: TypeAlias = tuple[slice, ...]  # of a part of an array
Kernels: TypeAlias = Sequence[Shaped[np.ndarray, "*inputs D"]]  # of query, key and value, or their biases

FUSED = ("query_proj", "key_proj", "value_proj")  # our names, in the order of the fused projections


def fuse(parts: Kernels, num_groups: int) -> Shaped[np.ndarray, "*inputs fused"]:
    """The projections of query, key and value, D wide each, as one that is 3 D wide.

    Its columns are the query, key and value of the first group of D / `num_groups` columns, then those of the next.
    """
    *inputs, width = parts[0].shape
    groups = [part.reshape(*inputs, num_groups, width // num_groups) for part in parts]
    return np.concatenate(groups, axis=-1).reshape(*inputs, 3 * width)


def split(whole: Shaped[np.ndarray, "*inputs fused"], num_groups: int) -> Kernels:
    """The three parts that `fuse` joined."""
    *inputs, width = whole.shape
    groups = whole.reshape(*inputs, num_groups, width // num_groups)
    return [part.reshape(*inputs, width // 3) for part in np.split(groups, 3, axis=-1)]


class Layout(NamedTuple):
    """Names and arrangement of our arrays in another program."""

    renames: tuple[tuple[str, str], ...]  # regular expressions and replacements, applied to our path in order
    transposed: bool  # kernels are [out, in], as in PyTorch; ours are [in, out]
    num_groups: int = 1  # in which query, key and value alternate where `renames` gives them one name: H if by head
    reshaped: Mapping[str, tuple[int, ...]] = {}  # theirs, of arrays whose axes are not ours, by our path

    def name(self, path: str) -> str:
        """Name of our array in the other program."""
        for pattern, replacement in self.renames:
            path = re.sub(pattern, replacement, path)
        return path

    def names(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Paths of our arrays by their name in the other program: one each, or those of query, key and value."""
        named: dict[str, list[str]] = {}
        for path in paths:
            named.setdefault(self.name(path), []).append(path)
        return {name: sorted(ours, key=_place) if len(ours) > 1 else ours for name, ours in named.items()}

    def shapes(self, like: Params) -> Shapes:
        """Shapes of the other program's arrays, from those of ours; no array is made, as large as it may be."""
        ours = shapes_of(like)
        theirs = {}
        for name, paths in self.names(ours).items():
            shape = ours[paths[0]]
            if len(paths) > 1:
                shape = (*shape[:-1], sum(ours[path][-1] for path in paths))
            transposed = shape[::-1] if self._is_transposed(paths[0]) else shape
            theirs[name] = self.reshaped.get(paths[0], transposed)
        return theirs

    def to_theirs(self, params: Params) -> Arrays:
        """Convert our parameters to the other program's arrays."""
        arrays = flatten_dict(params, sep="/")
        theirs = {}
        for name, paths in self.names(arrays).items():
            parts = [np.asarray(arrays[path]) for path in paths]
            whole = fuse(parts, self.num_groups) if len(parts) > 1 else parts[0]
            is_transposed = self._is_transposed(paths[0])
            if (shape := self.reshaped.get(paths[0])) is not None:
                whole = whole.reshape(shape[::-1] if is_transposed else shape)
            theirs[name] = whole.T if is_transposed else whole
        return theirs

    def to_ours(self, arrays: Arrays, like: Params, source: str) -> Params:
        """Convert the other program's arrays to our parameters: copies, in the same floating-point type.

        Args:
            arrays: of the other program, by name.
            like: tree with the structure and the shapes of our parameters.
            source: name of the file or object that holds the arrays, for error messages.

        Raises:
            InputError: as `check_arrays` does.
        """
        check_arrays(arrays, self.shapes(like), source)
        ours: Arrays = {}
        for name, paths in self.names(flatten_dict(like, sep="/")).items():
            parts = self.parts(paths, arrays[name])
            ours |= {path: np.array(part, order="C") for path, part in zip(paths, parts, strict=True)}
        return as_tree(ours)

    def parts(self, paths: Sequence[str], whole: np.ndarray) -> Kernels:
        """Our arrays at these paths, from the other program's one: views where they can be."""
        if self._is_transposed(paths[0]):
            whole = whole.T
        if paths[0] in self.reshaped:
            if paths[0].endswith("kernel"):
                whole = whole.reshape(-1, whole.shape[-1])
            while len(whole) == 1:
                whole = whole[0]
        return split(whole, self.num_groups) if len(paths) > 1 else [whole]

    def part(
        self, paths: Sequence[str], number: int, index: Index, read: Callable[[Index], np.ndarray]
    ) -> Shaped[np.ndarray, "..."]:
        """A part of one of our arrays at these paths, by reading a part of the other program's array.

        Args:
            paths: of our arrays that theirs holds.
            number: of the array among them.
            index: of the part.
            read: the other program's array, or a part of it.
        """
        if paths[0] in self.reshaped:
            return self.parts(paths, read(()))[number][index]
        is_fused = len(paths) > 1  # along the last axis of ours, which is read whole
        theirs = (*index[:-1], slice(None)) if is_fused else index
        found = self.parts(paths, read(theirs[::-1] if self._is_transposed(paths[0]) else theirs))[number]
        return found[..., index[-1]] if is_fused else found

    def _is_transposed(self, path: str) -> bool:
        """Whether our array is [in, out] and theirs [out, in]; an embedding [V, D] is the same in both."""
        return self.transposed and path.endswith("kernel")


def abstract_params(model: nn.Module, *inputs: object) -> Params:
    """Shapes and types of a model's parameters, of which none is made.

    Args:
        model: whose parameters.
        inputs: the arguments of its call, or their shapes and types.
    """
    return jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]


def as_tree(arrays: Arrays) -> Params:
    """The nested dictionaries of a model's parameters, from their paths."""
    return unflatten_dict(arrays, sep="/")


def by_path(params: Params) -> Arrays:
    """A model's parameters by path.

    Raises:
        InputError: they are not the nested dictionaries under "params" in what `model.init` returns.
    """
    if not isinstance(params, Mapping):
        raise InputError(f"params is a {type(params).__name__}; it must be nested dictionaries of arrays")
    if set(params) == {"params"}:
        raise InputError("params has the key 'params' alone; it must be what is under that key")
    try:
        return {path: np.asarray(leaf) for path, leaf in flatten_dict(params, sep="/").items()}
    except (TypeError, ValueError) as error:
        raise InputError(f"params has a name that is no text, or a leaf that is no array ({error})") from error


def shapes_of(params: Params) -> Shapes:
    """The shapes of a model's parameters by path, also of abstract ones."""
    return {path: tuple(leaf.shape) for path, leaf in flatten_dict(params, sep="/").items()}


def check_arrays(arrays: Mapping[str, np.ndarray | jax.Array], shapes: Shapes, source: str) -> None:
    """Check that arrays are those of a model: names, shapes, types, finite numbers.

    Raises:
        InputError: an array is missing or has no counterpart in the model, has another shape, is of no floating-point
            type, or is not finite; the message names the first.
    """
    check_shapes({name: array.shape for name, array in arrays.items()}, shapes, source)
    check_numbers(arrays, source)


def check_shapes(found: Shapes, expected: Shapes, source: str) -> None:
    """Raise an `InputError` that names the first array that is missing, has no counterpart, or has another shape."""
    if missing := [name for name in expected if name not in found]:
        raise InputError(f"{source} lacks {_first_of(missing)}")
    if extra := [name for name in found if name not in expected]:
        raise InputError(f"{source} has {_first_of(extra)}, for which the model has no place")
    for name, shape in found.items():
        if shape != expected[name]:
            raise InputError(f"{name} in {source} has the shape {[*shape]}; it must be {[*expected[name]]}")


def _first_of(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more arrays" if len(names) > 3 else shown


def _place(path: str) -> int:
    return FUSED.index(path.split("/")[-2])
