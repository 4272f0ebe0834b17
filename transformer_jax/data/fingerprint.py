"""The fingerprint of data sets: whether a run that goes on is given the data that it began with."""

import hashlib
from collections.abc import Sequence, Sized
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import PyTree


@runtime_checkable
class Fingerprinted(Protocol):
    """A data set that knows the digest of all that its samples are drawn from; those of files and tables do."""

    def fingerprint(self) -> str:
        """SHA-256 as hexadecimal digits."""


@runtime_checkable
class WithHostTable(Protocol):
    """A data set that may read rows of a table, which counts as a constant does: it may lie here or on the devices."""

    @property
    def host_table(self) -> np.ndarray | None: ...


# Any: PyTorch's `Dataset` has no length.
def fingerprint(datasets: Sequence[Any], constants: PyTree[ArrayLike]) -> str:
    """A digest of data sets and constants: SHA-256 as hexadecimal digits.

    For a data set that is not `Fingerprinted` its length, first and last sample are digested: enough for one that draws
    its samples from its seed.

    Args:
        datasets: in an order that matters.
        constants: pytree of arrays that every step reads, tables of features for example.
    """
    digest = hashlib.sha256()

    def add(leaf: ArrayLike) -> None:
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
    tables = {id(dataset.host_table): dataset.host_table for dataset in datasets if isinstance(dataset, WithHostTable)}
    for leaf in jax.tree.leaves([constants, *tables.values()]):
        add(leaf)
    return digest.hexdigest()
