"""Batches: samples are stacked, and short batches are padded to the compiled size."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Bool, PyTree

from transformer_jax.argument_checks import as_arrays
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import as_input_error
from transformer_jax.trees import Inputs, Targets

# rows of one or more batches from a loader, arrays [N, ...]
Samples: TypeAlias = tuple[Inputs, Targets]


class Batch(NamedTuple):
    """A batch of the compiled size: inputs, targets, and which rows are real."""

    inputs: Inputs  # pytree of arrays [B, ...]
    targets: Targets  # pytree of arrays [B, ...]
    valid: Bool[ArrayLike, "*steps B"]  # False for padding


def as_pair(samples: PyTree) -> Samples:
    """Check that samples are `(inputs, targets)`, and return them unchanged.

    Raises:
        InputError: they are not a tuple of two.
    """
    if isinstance(samples, tuple) and len(samples) == 2:
        return samples
    raise InputError(f"a data set must return (inputs, targets); got {shortened(samples)}")


def length_of(inputs: Any) -> int:  # not checked yet
    """Return T, the size of the second axis of a batch's first array that has one; 0 if none has."""
    shapes = (np.shape(leaf) for leaf in jax.tree.leaves(inputs))
    return next((shape[1] for shape in shapes if len(shape) > 1), 0)


def num_rows(tree: PyTree[ArrayLike]) -> int:
    """Return B, the length of the first axis, which all arrays of the tree share.

    Raises:
        InputError: there are no arrays, one has no axis, or they differ in the length of the first.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(tree)]
    if () in shapes or len({shape[0] for shape in shapes}) != 1:
        raise InputError(
            f"the arrays of a batch have shapes {shapes}; all must begin with the same number of"
            " rows"
        )
    return shapes[0][0]


def pad_rows(tree: PyTree[ArrayLike], size: int) -> PyTree[ArrayLike]:
    """Repeat the last row until there are `size` rows; a tree with at least `size` rows is returned unchanged.

    The copies are real data, so that nothing computed from them is infinite.

    Raises:
        InputError: there is no row to repeat; or see `num_rows`.
    """
    rows = num_rows(tree)
    if rows >= size:
        return tree
    if rows == 0:
        raise InputError(f"the batch has 0 rows; it must have at least 1 to be padded to {size}")
    row_numbers = np.minimum(np.arange(size), rows - 1)  # 0 1 … rows-1 rows-1 rows-1
    return jax.tree.map(lambda array: np.asarray(array)[row_numbers], tree)


def pad_batch(samples: Samples, batch_size: int) -> Batch:
    """Pad a short batch to `batch_size` rows with copies of its last row, which count as invalid.

    Raises:
        InputError: the samples are not `(inputs, targets)`, or their arrays differ in the number of rows or have none.
    """
    inputs, targets = pad_rows(as_pair(samples), batch_size)
    rows = num_rows(samples)
    is_valid = np.arange(max(rows, batch_size)) < rows
    return Batch(inputs, targets, is_valid)


def stack_batches(samples: Samples, batch_size: int, num_batches: int) -> tuple[Batch, np.int32]:
    """Split consecutive batches that were loaded at once, and pad them to `num_batches` batches.

    Args:
        samples: rows of at most `num_batches` batches; the last batch may be short.
        batch_size: B, rows of each batch.
        num_batches: batches of the result.

    Returns:
        Arrays `[num_batches, B, ...]`, and the number of batches that hold real rows.

    Raises:
        InputError: see `pad_batch`.
    """
    padded = pad_batch(samples, num_batches * batch_size)
    batches = jax.tree.map(
        lambda array: array.reshape(num_batches, batch_size, *array.shape[1:]), padded
    )
    return batches, np.int32(-(-num_rows(samples) // batch_size))


class StackedSamples:
    """Samples that are already stacked in one PyTree of arrays `[B, ...]`.

    Supports indexing and iteration, as collate functions expect; `numpy_collate` uses the stack directly. A data set's
    `__getitems__` returns this, so that loading a batch is one NumPy operation.
    """

    def __init__(self, stacked: PyTree) -> None:
        self.stacked = stacked

    def __len__(self) -> int:
        return num_rows(self.stacked)

    def __getitem__(self, index: int) -> PyTree:
        return jax.tree.map(lambda array: array[index], self.stacked)


class BatchDataset:
    """A data set whose `__getitems__` returns a whole batch; a single sample is a batch of one in epoch 0."""

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Samples:
        return self.__getitems__(EpochIndices([index], 0))[0]


class ArrayDataset(BatchDataset):
    """A data set of inputs and targets in memory.

    Args:
        inputs: pytree of arrays `[N, ...]`.
        targets: pytree of arrays `[N, ...]`.

    Raises:
        InputError: they have no rows, or not the same number.
    """

    def __init__(self, inputs: Inputs, targets: Targets) -> None:
        self.size = num_rows((inputs, targets))
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        return StackedSamples(
            jax.tree.map(lambda array: array[indices], (self.inputs, self.targets))
        )


def numpy_collate(samples: Sequence[PyTree] | StackedSamples) -> PyTree:
    """Stack samples, pytrees of equal structure, into one pytree of NumPy arrays `[B, ...]`.

    Raises:
        InputError: `samples` is not a list or is empty; samples differ in structure or in the shape of an array, or
            hold text, objects, masked arrays, or tensors that NumPy can't convert.
    """
    if isinstance(samples, StackedSamples):
        return samples.stacked
    if not isinstance(samples, Sequence) or not samples:
        raise InputError(
            f"samples is {shortened(samples)}; it must be a list of at least one sample"
        )
    with as_input_error(
        "samples can't be stacked: their shapes or structures differ, or NumPy lacks their type",
        ValueError,
        TypeError,  # this and the next are PyTorch's, if a tensor has gradients or is on a GPU
        RuntimeError,
    ):
        return as_arrays("samples", jax.tree.map(lambda *leaves: np.stack(leaves), *samples))


def load_stacked(dataset: Any, indices: EpochIndices) -> PyTree:  # a data set, of either form
    """Load and stack the samples of these indices; in one call if the data set has `__getitems__`."""
    if hasattr(dataset, "__getitems__"):
        return numpy_collate(dataset.__getitems__(indices))
    return numpy_collate([dataset[index] for index in indices])
