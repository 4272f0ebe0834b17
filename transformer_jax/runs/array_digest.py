"""The digest of a pytree's arrays, by which a damaged checkpoint is noticed."""

import hashlib
import json

import jax
import numpy as np
from jaxtyping import PyTree


def digest_of_arrays(tree: PyTree) -> str:
    """SHA-256 over names, types, shapes and elements of a pytree's arrays."""
    digest = hashlib.sha256()
    paths = jax.tree_util.tree_leaves_with_path(tree)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
    for name, leaf in sorted(named.items()):  # the order of a class's fields is not that of a dictionary's keys
        array = np.asarray(leaf)
        digest.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        digest.update(np.ascontiguousarray(array).view(np.uint8).data)
    return digest.hexdigest()
