"""Conversion of a training state's arrays for Orbax, and back."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

from transformer_jax.devices.sharing import is_typed_key
from transformer_jax.devices.specs import path_name
from transformer_jax.errors import InputError
from transformer_jax.outside_files import Json
from transformer_jax.runs.settings import differences

# Orbax finds files by glob patterns, and takes `gs:` for a server; TensorStore takes `\\` for `/`, and needs UTF-8.
SPECIAL = re.compile(r"[*?\[\]\\:\ud800-\udfff]")
# settings of JAX that change the dtypes and shapes of a training state
JAX_SETTINGS = ("JAX_DEFAULT_PRNG_IMPL", "JAX_ENABLE_X64")


@contextlib.contextmanager
def plain_path(directory: Path) -> Iterator[Path]:
    """Give a path to a directory that has no characters with a special meaning to Orbax or TensorStore."""
    if not SPECIAL.search(str(directory)):
        yield directory
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def read_arrays(directory: Path, like: PyTree | None) -> PyTree:
    """Read arrays that Orbax wrote, in the form of a PyTree; None returns nested dictionaries of NumPy arrays.

    Raises:
        InputError: the arrays have other names, dtypes or shapes than those of the PyTree.
    """
    handler = ocp.StandardCheckpointHandler()
    metadata = handler.metadata(directory).tree
    if like is None:
        # NumPy arrays of these shapes that take no memory, since Orbax would otherwise require the run's devices.
        target = jax.tree.map(
            lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), metadata
        )
    else:
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, without_typed_keys(like))
        # Orbax would convert other dtypes
        differing = differences(_shapes(metadata), _shapes(target))
        if differing:
            raise InputError(differing[0])
    return handler.restore(directory, args=ocp.args.StandardRestore(target))


def _shapes(tree: PyTree) -> Json:
    return {path: f"{leaf.dtype}{[*leaf.shape]}" for path, leaf in _by_path(tree)}


def _by_path(tree: PyTree) -> list[tuple[str, Any]]:
    """Pairs of path and leaf, in the order of the PyTree."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(path_name(path), leaf) for path, leaf in leaves]


def arrays_to_save(tree: PyTree) -> PyTree:
    """Return arrays that Orbax or this function copies at once, since the next training step reuses their memory.

    Orbax copies NumPy arrays, and arrays on GPUs and TPUs, but not arrays that are split over CPU devices.
    """

    def copied(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_replicated:
            return jnp.copy(leaf) if jax.default_backend() == "cpu" else leaf
        return np.asarray(leaf)

    return jax.tree.map(copied, without_typed_keys(tree))


def without_typed_keys(tree: PyTree) -> PyTree:
    """Replace the random keys of a state, which have no NumPy dtype, by integers `[..., 2]`."""
    return jax.tree.map(
        lambda leaf: jax.random.key_data(leaf) if is_typed_key(leaf) else leaf, tree
    )


def arrays_like(tree: PyTree, like: PyTree | None) -> PyTree:
    """Invert `without_typed_keys`: arrays that are random keys in `like` become keys; with None, none do."""
    if like is None:
        return tree
    return jax.tree.map(
        lambda array, leaf: jax.random.wrap_key_data(array) if is_typed_key(leaf) else array,
        tree,
        like,
    )


def digest_of_arrays(tree: PyTree) -> str:
    """SHA-256 of the names, dtypes, shapes and elements of a PyTree's arrays."""
    digest = hashlib.sha256()
    # The order of a class's fields is not that of a dictionary's keys.
    for name, leaf in sorted(_by_path(tree), key=itemgetter(0)):
        array = np.asarray(leaf)
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
