"""Fingerprint of data sets, to check that a resumed run gets the data that it began with."""

import hashlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree


# PyTorch's `Dataset` declares no length; `make_loader` has checked that there is one.
def fingerprint(
    datasets: Sequence[Any], constants: PyTree[ArrayLike], files: Sequence[str] = ()
) -> str:
    """Compute a digest of data sets and constants: SHA-256 as hexadecimal digits.

    A data set whose samples come from files or tables has a method `fingerprint` that returns their digest. For other
    data sets, the length and the first and last samples are digested, which is enough if samples are drawn from a seed.
    A data set's `host_table`, of which it reads rows, counts as a constant, whether on the host or on the devices.

    Args:
        datasets: the data sets, in a fixed order, which affects the digest.
        constants: PyTree of arrays that every step reads, such as tables of features.
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
