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
        begins = range(0, count, loader_batch_size)
        rows = range(self.start, self.stop)
        return [
            min(begin + row, begin + loader_batch_size - 1, count - 1)
            for begin in begins
            for row in rows
        ]

    def of(self, samples: Samples) -> "LocalSamples":
        """This process's rows of one batch that was loaded whole."""
        count = num_rows(as_pair(samples))
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
        """Stack these rows as `stack_batches` does: arrays `[num_batches, B of this process, ...]`, number of batches.

        Missing batches are copies of the first batch, and count as invalid.
        """
        held = -(-self.num_rows // self.loader_batch_size)
        rows = self.rows.stop - self.rows.start
        numbers = np.where(np.arange(num_batches) < held, np.arange(num_batches), 0)
        inputs, targets = jax.tree.map(
            lambda a: a.reshape(held, rows, *a.shape[1:])[numbers], self.samples
        )
        real = np.clip(
            self.num_rows - self.loader_batch_size * np.arange(num_batches),
            0,
            self.loader_batch_size,
        )
        valid = np.arange(self.rows.start, self.rows.stop) < real[:, None]
        return Batch(inputs, targets, valid), np.int32(held)

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
        self._dataset, self._rows, self._batch_size = dataset, rows, batch_size

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Samples:
        return self._dataset[index]

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        """This process's rows of the batches that these indices make up, as `LocalSamples`."""
        chosen = [indices[row] for row in self._rows.rows_of(len(indices), self._batch_size)]
        mine = EpochIndices(chosen, indices.epoch, whole=indices)
        loaded = as_arrays("samples", as_pair(load_stacked(self._dataset, mine)))
        return StackedSamples(LocalSamples(loaded, len(indices), self._batch_size, self._rows))
