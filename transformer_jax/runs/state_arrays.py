"""Conversion of a training state's arrays for Orbax, and back."""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jaxtyping import PyTree

# Orbax finds files by glob patterns, and takes `gs:` for a server; TensorStore takes `\\` for `/`, and needs UTF-8.
SPECIAL = re.compile(r"[*?\[\]\\:\ud800-\udfff]")


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
    """Read arrays that Orbax wrote, in the form of a PyTree; None returns nested dictionaries of NumPy arrays."""
    handler = ocp.StandardCheckpointHandler()
    if like is None:
        # NumPy arrays of these shapes that take no memory, since Orbax would otherwise require the run's devices.
        metadata = handler.metadata(directory).tree
        target = jax.tree.map(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), metadata)
    else:
        target = jax.tree.map(ocp.utils.to_shape_dtype_struct, without_typed_keys(like))
    return handler.restore(directory, args=ocp.args.StandardRestore(target))


def arrays_to_save(tree: PyTree) -> PyTree:
    """Return arrays that Orbax or this function copies at once, since the next training step reuses their memory.

    Orbax copies NumPy arrays, and arrays on GPUs and TPUs, but not arrays that are split over CPU devices.
    """

    def of_leaf(leaf: jax.Array | np.ndarray) -> jax.Array | np.ndarray:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_replicated:
            return jnp.copy(leaf) if jax.default_backend() == "cpu" else leaf
        return np.asarray(leaf)

    return jax.tree.map(of_leaf, without_typed_keys(tree))


def _is_typed_key(leaf: object) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def without_typed_keys(tree: PyTree) -> PyTree:
    """Replace the random keys of a state, which have no NumPy dtype, by integers `[..., 2]`."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_typed_key(leaf) else leaf, tree)


def arrays_like(tree: PyTree, like: PyTree | None) -> PyTree:
    """Invert `without_typed_keys`: arrays that are random keys in `like` become keys; with None, none do."""
    if like is None:
        return tree
    return jax.tree.map(lambda a, b: jax.random.wrap_key_data(a) if _is_typed_key(b) else a, tree, like)


def digest_of_arrays(tree: PyTree) -> str:
    """SHA-256 of the names, dtypes, shapes and elements of a PyTree's arrays."""
    digest = hashlib.sha256()
    paths = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
    for name, leaf in sorted(named.items()):  # the order of a class's fields is not that of a dictionary's keys
        array = np.asarray(leaf)
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
