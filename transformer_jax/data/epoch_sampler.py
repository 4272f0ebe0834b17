"""The order of an epoch's batches, a function of the seed and the epoch's number."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Int


class EpochIndices(list[int]):
    """Indices of samples, with the epoch they belong to, for data sets that draw new samples in each epoch.

    Args:
        indices: of the samples to load.
        epoch: that they belong to.
        whole: where other processes load the rest, the indices of the whole batch, for a data set that pads to its
            longest sample; the same as `indices` if None.
    """

    def __init__(self, indices: Iterable[int], epoch: int, whole: Sequence[int] | None = None) -> None:
        super().__init__(indices)
        self.epoch = epoch
        self.whole: Sequence[int] = self if whole is None else whole


@dataclasses.dataclass(frozen=True, eq=False)
class EpochBatchSampler:
    """Indices of the samples in each batch. Nothing in it changes, so that several epochs can be iterated at a time.

    With `groups`, samples of one group share batches. Where a group ends within a batch, samples of the next higher
    group fill it up, so that there are as many batches as without groups. `make_loader` checks the fields.
    """

    num_samples: int  # N
    batch_size: int  # B; the last batch may be shorter
    _: dataclasses.KW_ONLY
    shuffle: bool  # a new order in each epoch, instead of ascending indices
    drop_last: bool  # leave out a last batch that is shorter than the others
    seed: int  # of the order
    groups: Int[np.ndarray, " N"] | None = None  # the group of each sample

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.num_samples // self.batch_size if self.drop_last else -(-self.num_samples // self.batch_size)

    def epoch(
        self, epoch: int, first_batch: int = 0, batches_at_once: Callable[[], int] = lambda: 1
    ) -> Iterator[EpochIndices]:
        """The indices of one batch after another.

        Args:
            epoch: its number; with the seed it determines the order.
            first_batch: the batch to begin with, as a resumed run does.
            batches_at_once: called before each item; the item holds the indices of that many consecutive batches.
        """
        rng = np.random.default_rng([self.seed, epoch])
        order, batches = np.arange(self.num_samples), np.arange(len(self))  # `order` is cut into batches
        if self.shuffle:
            order = rng.permutation(order)
        if self.groups is not None:
            order = order[np.argsort(self.groups[order], kind="stable")]
            if self.shuffle:
                batches = rng.permutation(batches)  # else an epoch would go from the lowest group to the highest
        while first_batch < len(batches):
            num_batches = batches_at_once()
            chosen = batches[first_batch : first_batch + num_batches]
            indices = [order[batch * self.batch_size : (batch + 1) * self.batch_size] for batch in chosen]
            yield EpochIndices(np.concatenate(indices).tolist(), epoch)
            first_batch += num_batches
