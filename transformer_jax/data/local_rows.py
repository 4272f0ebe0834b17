"""The rows of each batch that a process loads if several processes train together."""

from typing import Any, NamedTuple

import jax
import numpy as np

from transformer_jax.argument_checks import as_arrays
from transformer_jax.data.batch import (
    Batch,
    Samples,
    StackedSamples,
    as_pair,
    load_stacked,
    num_rows,
    stack_batches,
)
from transformer_jax.data.epoch_sampler import EpochIndices


class RowRange(NamedTuple):
    """A process's rows of each batch: from `start` to before `stop`, of `batch_size` rows."""

    start: int
    stop: int
    batch_size: int

    def rows_of(self, count: int, loader_batch_size: int) -> list[int]:
        """Indices of this process's rows among `count` rows of consecutive batches, the last of which may be short.

        Indices past the end of a batch repeat its last row, so that every batch gives a process equally many rows.

        Args:
            count: number of rows, in all processes.
            loader_batch_size: rows of each batch but the last; at most `batch_size`.
        """
        rows = []
        for begin in range(0, count, loader_batch_size):
            last = min(begin + loader_batch_size, count) - 1
            rows += [min(begin + row, last) for row in range(self.start, self.stop)]
        return rows

    def local_samples(self, samples: Samples) -> "LocalSamples":
        """This process's rows of one batch that was loaded whole."""
        count = num_rows(samples)
        rows = self.rows_of(count, self.batch_size)
        return LocalSamples(
            jax.tree.map(lambda array: array[rows], samples), count, self.batch_size, self
        )


class LocalSamples(NamedTuple):
    """A process's rows of consecutive batches; other processes have the rest."""

    samples: Samples  # arrays [num_batches · (rows.stop - rows.start), ...]
    num_rows: int  # of these batches in all processes, without copies
    loader_batch_size: int  # rows of each batch but the last
    rows: RowRange

    def stacked(self, num_batches: int) -> tuple[Batch, np.int32]:
        """Stack these rows as `stack_batches` does: arrays `[num_batches, B of this process, ...]`, and their count."""
        rows = np.arange(self.rows.start, self.rows.stop)
        batches, count = stack_batches(self.samples, len(rows), num_batches)
        begins = self.loader_batch_size * np.arange(num_batches)
        num_real = np.minimum(self.num_rows - begins, self.loader_batch_size)  # rows of each batch
        return batches._replace(valid=rows < num_real[:, None]), count

    def padded(self) -> Batch:
        """Return the rows of a single batch, like `pad_batch` for whole batches."""
        return jax.tree.map(lambda array: array[0], self.stacked(1)[0])


class LocalRows:
    """A data set of which a process loads only its rows of each batch.

    Args:
        dataset: the data set.
        rows: the rows of each batch that this process loads.
        batch_size: batch size of the loader.
    """

    # a data set, of either form
    def __init__(self, dataset: Any, rows: RowRange, batch_size: int) -> None:
        self._dataset = dataset
        self._rows = rows
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Samples:
        return self._dataset[index]

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        """This process's rows of the batches that these indices make up, as `LocalSamples`."""
        rows = self._rows.rows_of(len(indices), self._batch_size)
        local_indices = EpochIndices([indices[row] for row in rows], indices.epoch, whole=indices)
        loaded = as_arrays("samples", as_pair(load_stacked(self._dataset, local_indices)))
        return StackedSamples(LocalSamples(loaded, len(indices), self._batch_size, self._rows))
