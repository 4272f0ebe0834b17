"""The fingerprint of data sets: whether a run that goes on is given the data that it began with."""

import hashlib
from collections.abc import Iterator, Sequence, Sized
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
class InBlocks(Protocol):
    """An array that need not fit into memory: it is read some of its rows at a time."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def blocks(self) -> Iterator[np.ndarray]:
        """Its rows in order, as arrays of its type."""


@runtime_checkable
class WithHostTable(Protocol):
    """A data set that reads rows of a table. It counts as a constant does: it may lie here or on the devices."""

    @property
    def host_table(self) -> np.ndarray | InBlocks: ...


# Any: PyTorch's `Dataset` has no length.
def fingerprint(datasets: Sequence[Any], constants: PyTree[ArrayLike | InBlocks]) -> str:
    """A digest of data sets and constants: SHA-256 as hexadecimal digits.

    For a data set that is not `Fingerprinted` its length, first and last sample are digested: enough for one that draws
    its samples from its seed.

    Args:
        datasets: in an order that matters.
        constants: pytree of arrays that every step reads, tables of features for example; some may be `InBlocks`, which
            has the digest of the same array in memory.
    """
    digest = hashlib.sha256()

    def add(leaf: Any) -> None:  # Any: an array, or a number
        array = leaf if isinstance(leaf, InBlocks) else np.ascontiguousarray(leaf)
        digest.update(repr((str(array.dtype), array.shape)).encode())
        for block in array.blocks() if isinstance(array, InBlocks) else [array]:
            digest.update(block.view(np.uint8).data)

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
