"""The fingerprint of data sets: whether a run that goes on is given the data that it began with."""

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree


# PyTorch's `Dataset` declares no length; `make_loader` has checked that there is one.
def fingerprint(datasets: Sequence[Any], constants: PyTree[ArrayLike], files: Sequence[str] = ()) -> str:
    """A digest of data sets and constants: SHA-256 as hexadecimal digits.

    A data set whose samples are drawn from files or tables has a method `fingerprint` for their digest. Of others the
    length, first and last sample are digested: enough for one that draws its samples from its seed. A `host_table`, of
    which a data set reads rows, counts as a constant does: it may lie here or on the devices.

    Args:
        datasets: in an order that matters.
        constants: pytree of arrays that every step reads, tables of features for example.
        files: contents of files that the model needs.
    """
    digest = hashlib.sha256()

    def add(leaf: ArrayLike) -> None:
        array = np.ascontiguousarray(leaf)
        digest.update(repr((str(array.dtype), array.shape)).encode())
        digest.update(array.view(np.uint8).data)

    for dataset in datasets:
        if hasattr(dataset, "fingerprint"):
            digest.update(repr(dataset.fingerprint()).encode())
        else:
            digest.update(repr(len(dataset)).encode())
            for leaf in jax.tree.leaves([dataset[0], dataset[len(dataset) - 1]]):
                add(leaf)
    tables = [getattr(dataset, "host_table", None) for dataset in datasets]
    for leaf in jax.tree.leaves([constants, *{id(table): table for table in tables}.values()]):
        add(leaf)
    for content in files:
        digest.update(hashlib.sha256(content.encode()).digest())
    return digest.hexdigest()
