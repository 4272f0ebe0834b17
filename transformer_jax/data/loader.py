"""Batches of NumPy arrays in an order that depends on (seed, epoch), loaded here or in PyTorch's worker processes."""

import atexit
import functools
import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from jaxtyping import Int, PyTree

from transformer_jax.argument_checks import Count, Size, as_arrays, check_arguments
from transformer_jax.data.batch import Samples, as_pair, length_of, load_stacked, numpy_collate
from transformer_jax.data.epoch_sampler import EpochBatchSampler, EpochIndices, TokenBatches
from transformer_jax.data.local_rows import LocalRows, LocalSamples, RowRange
from transformer_jax.errors import InputError, shortened
from transformer_jax.outside_files import as_input_error

if TYPE_CHECKING:
    import torch.utils.data


@runtime_checkable
class Dataset(Protocol):
    """A map-style data set: each sample is `(inputs, targets)`, two PyTrees of arrays without a batch axis.

    A sample is a function of its index (and of the epoch): a resumed run checks the first and the last sample. A data
    set of random samples instead has a method `fingerprint() -> str`, a digest of everything they are drawn from.

    A data set that can load a whole batch also has `__getitems__(indices: EpochIndices) -> StackedSamples`.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Samples: ...


class _Worker(SpawnProcess):
    """A worker process that is killed at exit: Python would send SIGTERM, which it blocks, and wait for its end."""

    def start(self) -> None:
        super().start()
        atexit.register(self._kill)

    def _kill(self) -> None:
        # PyTorch's handler would raise an error at its death
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.kill()


class _Workers(SpawnContext):
    """Starts workers as new processes: one forked from a process that runs JAX's threads can deadlock."""

    Process = _Worker


def _end_with_the_parent(worker: int) -> None:
    """End this worker process when the main one is gone: PyTorch's workers would wait for a reader of their data."""

    def wait() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


class _NewestEpoch:
    """The `batch_sampler` of PyTorch's `DataLoader`, which must exist before any epoch does.

    `DataLoader` calls `iter` on it once, when an iteration over the `DataLoader` begins.
    """

    def __init__(self) -> None:
        self.indices: Iterator[EpochIndices] = iter(())

    def __iter__(self) -> Iterator[EpochIndices]:
        return self.indices


class Loader:
    """Batches of a data set, epoch by epoch; `make_loader` makes one.

    PyTorch is only imported for workers, which takes a second or two.

    Args:
        dataset: the data set.
        sampler: the order of the samples in an epoch, and their division into batches.
        num_workers: number of processes that load.

    Attributes:
        batch_size: B; for batches by tokens, the largest number of samples.
        has_groups: whether samples of one group share batches; batches of different groups may differ in shape.
        token_batches: batch size in tokens; None for batches of B samples.
    """

    def __init__(self, dataset: Dataset, sampler: EpochBatchSampler, num_workers: int) -> None:
        self.dataset = dataset
        self._sampler = sampler
        self._num_workers = num_workers
        self.batch_size = sampler.batch_size
        self.has_groups = sampler.groups is not None
        self.token_batches = sampler.token_batches
        self._newest_epoch = _NewestEpoch()

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self._sampler)

    def __iter__(self) -> Iterator[Samples]:
        """Epoch 0."""
        return self.epoch(0)

    def epoch(
        self,
        epoch: int,
        first_batch: int = 0,
        batches_at_once: Callable[[], int] = lambda: 1,
        num_batches: int | None = None,
    ) -> Iterator[Samples]:
        """The batches of an epoch, one after another.

        Worker processes start, and begin to load, before this returns. They can load one epoch at a time; without
        them, several epochs can be iterated at a time.

        Args:
            epoch: number of the epoch; with the seed it determines the order.
            first_batch: the batch to begin with, for a resumed run.
            batches_at_once: called before each item is loaded; the item holds the rows of that many consecutive
                batches. Each worker loads two items in advance, so that changes take effect that much later.
            num_batches: maximum number of batches; None for the rest of the epoch.

        Raises:
            InputError: a sample is not `(inputs, targets)`, or the data set can't be pickled for workers.
            RuntimeError: with workers, at the next item of an epoch after another one was begun; or PyTorch's, if a
                worker was killed.
        """
        indices = self._sampler.epoch(epoch, first_batch, batches_at_once, num_batches)
        if not self._num_workers:
            return (_checked(load_stacked(self.dataset, rows)) for rows in indices)
        # the workers' `DataLoader`, made once for all epochs, takes its batches from here
        self._newest_epoch.indices = indices
        return self._receive(self._begin(), indices)

    def _receive(
        self, batches: Iterator[PyTree], indices: Iterator[EpochIndices]
    ) -> Iterator[Samples]:
        while True:
            # Workers outlive the epoch: PyTorch gives one and the same iterator for all epochs.
            if indices is not self._newest_epoch.indices:
                raise RuntimeError(
                    "another epoch of this loader was begun; with workers only the newest can"
                    " continue"
                )
            samples = next(batches, None)
            if samples is None:
                return
            yield _checked(samples)

    def of_rows(self, rows: RowRange) -> "Loader":
        """Return a loader of the same batches that loads only these rows.

        Raises:
            InputError: batches are sized by tokens, so that their numbers of rows differ.
        """
        if self.token_batches is not None:
            raise InputError(
                f"batch_tokens is {self.token_batches.most}; several processes need batch_size"
                " instead"
            )
        return Loader(
            LocalRows(self.dataset, rows, self.batch_size), self._sampler, self._num_workers
        )

    def example(self) -> Samples:
        """A batch of one row, the data set's first sample in epoch 0, for the shapes of a model's parameters.

        Raises:
            InputError: the sample is not `(inputs, targets)`.
        """
        return self._sample(0)

    def common_length(self) -> int:
        """T of the first, the middle and the last sample's inputs, see `length_of`; 0 if they differ, or in groups."""
        if self.has_groups:
            return 0
        size = len(self.dataset)
        lengths = {length_of(self._sample(number)[0]) for number in (0, size // 2, size - 1)}
        return lengths.pop() if len(lengths) == 1 else 0

    def _sample(self, number: int) -> Samples:
        return as_pair(numpy_collate([self.dataset[number]]))

    def _begin(self) -> Iterator[PyTree]:
        """Let the workers begin to load the newest epoch.

        SIGTERM and SIGINT never reach the workers, even if the whole process group gets one: the main process decides.
        Workers inherit the blocked signals when they start; the main process gets signals that arrive meanwhile when
        they are unblocked.
        """
        # Both come before signals are blocked: PyTorch is imported, during which signals shall come through, and the
        # tracker unblocks the signals of this process when it starts.
        loader = self._loader
        resource_tracker.ensure_running()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
        try:
            text = (
                f"num_workers is {self._num_workers}; worker processes need a data set that Python"
                " can pickle"
            )
            with (
                warnings.catch_warnings(),
                as_input_error(text, pickle.PicklingError, AttributeError, TypeError),
            ):
                warnings.filterwarnings("ignore", "Got pickle error")  # PyTorch's, before the error
                return iter(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @functools.cached_property
    def _loader(self) -> "torch.utils.data.DataLoader[Samples]":
        from torch.utils.data import DataLoader

        return DataLoader(
            cast("torch.utils.data.Dataset[Samples]", self.dataset),
            batch_sampler=self._newest_epoch,
            collate_fn=numpy_collate,
            num_workers=self._num_workers,
            worker_init_fn=_end_with_the_parent,
            multiprocessing_context=_Workers(),
            persistent_workers=True,
        )


def check_loader(name: str, value: object) -> None:
    """Raise an `InputError` unless a value is a loader."""
    if not isinstance(value, Loader):
        raise InputError(
            f"{name} is {shortened(value)}; it must be a loader: make_loader(dataset, batch_size)"
        )


GivenLoader: TypeAlias = Annotated[Loader, check_loader]


def _checked(samples: PyTree) -> Any:  # Samples, but for a loader that `of_rows` made
    """Check that samples are `(inputs, targets)`, or `LocalSamples`, which only loaders from `of_rows` yield."""
    if isinstance(samples, LocalSamples):
        return samples
    return as_arrays("samples", as_pair(samples))


@check_arguments
def make_loader(
    dataset: Dataset,
    batch_size: TokenBatches | Size,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
    seed: Count = 0,
    num_workers: Count = 0,
    groups: Int[np.ndarray, " N"] | None = None,
) -> Loader:
    """Create a loader of NumPy batches from a map-style data set.

    Args:
        dataset: returns `(inputs, targets)` for an index, and `StackedSamples` for `EpochIndices` if it has
            `__getitems__`.
        batch_size: B, samples in a batch; the last batch may be shorter. Or `TokenBatches`, by the lengths of `groups`.
        shuffle: a new order in each epoch, a function of the seed and the epoch's number.
        drop_last: leave out a shorter last batch.
        seed: seed of the order.
        num_workers: number of worker processes; the batches are the same for any number of them. They import the script
            that was started, which must therefore begin its work under `if __name__ == "__main__":`.
        groups: a number for each sample; samples of one group share batches, those of similar length for example.

    Raises:
        InputError: the data set is empty, or smaller than one batch with `drop_last`; a number is below its minimum;
            `groups` does not have one number for each sample; or `TokenBatches` lack groups or have `drop_last`.
    """
    if not isinstance(dataset, Dataset):
        raise InputError(
            f"dataset is a {type(dataset).__name__}; it must have a length, and a sample for each"
            " index"
        )
    num_samples = len(dataset)
    if num_samples == 0:
        raise InputError("the dataset is empty; it must hold at least one sample")
    if groups is not None and (groups.shape != (num_samples,) or groups.dtype.kind not in "iu"):
        raise InputError(
            f"groups has shape {groups.shape}; it must hold {num_samples} whole numbers"
        )
    by_tokens: TokenBatches | None = None
    if isinstance(batch_size, TokenBatches):
        by_tokens = batch_size
        batch_size = max(by_tokens.rows)
        last_group = len(by_tokens.lengths) - 1
        if groups is None or drop_last or groups.min() < 0 or groups.max() > last_group:
            raise InputError(
                f"batch_size is {by_tokens}; it needs groups from 0 to {last_group}, and drop_last=False"
            )
    if drop_last and batch_size > num_samples:
        raise InputError(
            f"batch_size is {batch_size}; it may be at most {num_samples}, the size of the training set,"
            " since a shorter last batch is dropped"
        )
    sampler = EpochBatchSampler(
        num_samples,
        batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=seed,
        groups=groups,
        token_batches=by_tokens,
    )
    return Loader(dataset, sampler, num_workers)
