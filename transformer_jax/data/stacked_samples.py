"""Samples as one pytree of arrays: what a data set gives for a whole batch, and what others are stacked into."""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import PyTree

from transformer_jax.data.batch import num_rows
from transformer_jax.errors import InputError


class StackedSamples:
    """Samples that are already stacked in one pytree of arrays `[B, ...]`.

    It can be indexed and iterated, as any collate function expects, and `numpy_collate` takes the stack as it is.
    A data set's `__getitems__` returns it, so that loading a batch is one NumPy operation.
    """

    def __init__(self, stacked: PyTree) -> None:
        self.stacked = stacked

    def __len__(self) -> int:
        return num_rows(self.stacked)

    def __getitem__(self, index: int) -> PyTree:
        return jax.tree.map(lambda array: array[index], self.stacked)


def numpy_collate(samples: Sequence[PyTree] | StackedSamples) -> PyTree:
    """Stack samples, pytrees of equal structure, into one pytree of NumPy arrays `[B, ...]`.

    Raises:
        InputError: `samples` is no list, or empty; the samples differ in structure or in the shape of an array, or hold
            text.
    """
    if isinstance(samples, StackedSamples):
        return samples.stacked
    if not isinstance(samples, Sequence) or isinstance(samples, str) or not samples:
        raise InputError(f"samples is {samples!r}; it must be a list of at least one sample")
    try:
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *samples)
    except ValueError as error:
        raise InputError(f"samples can't be stacked, since they differ: {error}") from error
    if any(array.dtype.kind in "US" for array in jax.tree.leaves(stacked)):
        raise InputError(f"samples hold text, where numbers are expected: {samples[0]!r}, for example")
    return stacked
