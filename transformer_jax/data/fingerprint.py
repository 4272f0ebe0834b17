"""The fingerprint of data sets: whether a run that goes on is given the data that it began with."""

import hashlib
from collections.abc import Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from transformer_jax.trees import Arrays


@runtime_checkable
class Fingerprinted(Protocol):
    """A data set that knows the digest of all that its samples are drawn from; those of files and tables do."""

    def fingerprint(self) -> str:
        """SHA-256 as hexadecimal digits."""


def fingerprint(datasets: Sequence[Any], constants: Arrays) -> str:  # Any: PyTorch's `Dataset` has no length
    """A digest of data sets and constants: SHA-256 as hexadecimal digits.

    For a data set that is not `Fingerprinted` its length, first and last sample are digested: enough for one that draws
    its samples from its seed.

    Args:
        datasets: in an order that matters.
        constants: pytree of arrays that every step reads, tables of features for example.
    """
    digest = hashlib.sha256()

    def add(leaf: Any) -> None:  # Any: an array, or a number
        array = np.ascontiguousarray(leaf)
        digest.update(repr((str(array.dtype), array.shape)).encode())
        digest.update(array.view(np.uint8).data)

    for dataset in datasets:
        if isinstance(dataset, Fingerprinted):
            digest.update(repr(dataset.fingerprint()).encode())
            continue
        size = len(dataset) if isinstance(dataset, Sized) else 0
        digest.update(repr(size).encode())
        for sample in (dataset[0], dataset[size - 1]) if size else ():
            for leaf in jax.tree.leaves(sample):
                add(leaf)
    for leaf in jax.tree.leaves(constants):
        add(leaf)
    return digest.hexdigest()
