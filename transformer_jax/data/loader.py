"""Batches of NumPy arrays from PyTorch loaders, in an order that is a function of (seed, epoch)."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Int

from transformer_jax.errors import InputError

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


class StackedSamples(Sequence):
    """Samples that already lie stacked in one pytree of arrays.

    It reads as the sequence of samples that any collate function expects, and `numpy_collate` takes the stack as it is.
    A dataset's `__getitems__` returns it, so that a batch is one NumPy operation.
    """

    def __init__(self, stacked: Any) -> None:
        self.stacked = stacked  # arrays [B, ...]

    def __len__(self) -> int:
        return len(jax.tree.leaves(self.stacked)[0])

    def __getitem__(self, index: int) -> Any:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index is {index}; there are {len(self)} samples")
        return jax.tree.map(lambda array: array[index], self.stacked)


def numpy_collate(samples: Sequence[Any]) -> Any:
    """Stack samples, pytrees of equal structure, into one pytree of NumPy arrays `[B, ...]`."""
    if isinstance(samples, StackedSamples):
        return samples.stacked
    return jax.tree.map(lambda *leaves: np.stack(leaves), *samples)


class EpochIndices(list[int]):
    """The indices of a batch, which also know their epoch, for data sets that draw anew in each."""

    def __init__(self, indices: Iterable[int], epoch: int) -> None:
        super().__init__(indices)
        self.epoch = epoch


class EpochBatchSampler:
    """Batches of indices; the order of an epoch depends on the seed and the epoch's number alone.

    With `groups`, a number for each sample, those of one group share batches: where one group ends, a batch also takes
    samples of the next higher, so that there are as many batches as without.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        shuffle: bool,
        drop_last: bool,
        seed: int,
        groups: Int[np.ndarray, " N"] | None = None,
    ) -> None:
        if groups is not None and len(groups) != num_samples:
            raise ValueError(f"groups has {len(groups)} numbers; there are {num_samples} samples")
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed = seed
        self.groups = groups
        self.steps_per_call = 1  # batches that come at once, behind each other; may be changed while iterating
        self.set_epoch(0)

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Choose the epoch whose order the next iteration gives, and the batch in it to begin with."""
        self.epoch = epoch
        self.first_batch = first_batch

    def __len__(self) -> int:
        return self.num_samples // self.batch_size if self.drop_last else -(-self.num_samples // self.batch_size)

    def __iter__(self) -> Iterator[EpochIndices]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = np.arange(self.num_samples)
        if self.shuffle:
            order = rng.permutation(order)
        batches = np.arange(len(self))
        if self.groups is not None:
            order = order[np.argsort(self.groups[order], kind="stable")]
            if self.shuffle:
                batches = rng.permutation(batches)  # else an epoch would go from the lowest group to the highest
        start = self.first_batch
        while start < len(batches):
            chunk = batches[start : start + self.steps_per_call]
            indices = [order[batch * self.batch_size : (batch + 1) * self.batch_size] for batch in chunk]
            yield EpochIndices(np.concatenate(indices).tolist(), self.epoch)
            start += len(chunk)


def import_pytorch() -> None:
    """Before the first batch is asked for: it takes a second or two."""
    import torch.utils.data  # noqa: F401


class Loader:
    """Batches of NumPy arrays through PyTorch's `DataLoader`, as `make_loader` sets it up.

    PyTorch is imported when the first batch is asked for, if not before.
    """

    collate_fn = staticmethod(numpy_collate)

    def __init__(self, dataset: Any, batch_sampler: EpochBatchSampler, num_workers: int) -> None:
        self.dataset, self.batch_sampler, self.num_workers = dataset, batch_sampler, num_workers

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    @functools.cached_property
    def _loader(self) -> "DataLoader":
        from torch.utils.data import DataLoader

        return DataLoader(
            self.dataset,
            batch_sampler=self.batch_sampler,
            collate_fn=self.collate_fn,
            num_workers=self.num_workers,
            # A process forked from one that runs JAX's threads can deadlock.
            multiprocessing_context="spawn" if self.num_workers else None,
            persistent_workers=self.num_workers > 0,
        )


def make_loader(
    dataset: Any,
    batch_size: int,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
    seed: int = 0,
    num_workers: int = 0,
    groups: Int[np.ndarray, " N"] | None = None,
) -> Loader:
    """A loader of NumPy batches over a map-style dataset.

    Args:
        dataset: gives a sample for an index, and `StackedSamples` for `EpochIndices` if it has `__getitems__`.
        batch_size: samples in a batch; the last one may be shorter.
        shuffle: in a new order each epoch; the epoch is set by `loader.batch_sampler.set_epoch(epoch)`.
        drop_last: leave out a shorter last batch.
        seed: of the order.
        num_workers: processes that load; the batches are the same for any number of them. They import the script
            that was started, which must therefore begin its work under `if __name__ == "__main__":`.
        groups: a number for each sample; those of one group share batches, samples of like length for example.

    Raises:
        InputError: the dataset is empty, or smaller than one batch with `drop_last`; a number is below its minimum.
    """
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; it must be at least 1")
    if num_workers < 0:
        raise InputError(f"num_workers is {num_workers}; it must be at least 0")
    if len(dataset) == 0:
        raise InputError("the dataset is empty; it must hold at least one sample")
    if drop_last and batch_size > len(dataset):
        raise InputError(
            f"batch_size is {batch_size}; it may be at most {len(dataset)}, the size of the training set, "
            "since a shorter last batch is dropped"
        )
    sampler = EpochBatchSampler(
        len(dataset), batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed, groups=groups
    )
    return Loader(dataset, sampler, num_workers)
