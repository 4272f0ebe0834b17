"""The order and sizes of an epoch's batches, as a function of the seed and the epoch's number."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int, PyTree

from transformer_jax.errors import InputError


class EpochIndices(list[int]):
    """Indices of samples, with the epoch they belong to, for data sets that draw new samples in each epoch.

    Args:
        indices: indices of the samples to load.
        epoch: the epoch that they belong to.
        whole: indices of the whole batch, if other processes load the rest: a data set may pad to its longest sample.
            None if they are the same as `indices`.
    """

    def __init__(
        self, indices: Iterable[int], epoch: int, whole: Sequence[int] | None = None
    ) -> None:
        super().__init__(indices)
        self.epoch = epoch
        self.whole: Sequence[int] = self if whole is None else whole


@dataclasses.dataclass(frozen=True)
class TokenBatches:
    """Batch size given as a number of tokens: the rows times the longest padded sequence of a row.

    An alternative to the number of samples in `make_loader`; each batch holds samples of a single group.

    Raises:
        InputError: a padded sample of some group has more tokens than a batch.
    """

    most: int  # maximum number of tokens in a batch
    lengths: tuple[int, ...]  # padded length of the longest sequence of a sample, for each group

    def __post_init__(self) -> None:
        longest = max(self.lengths)
        if self.most < longest:
            raise InputError(
                f"batch_tokens is {self.most}; it must be at least {longest}, the length of a"
                " padded row"
            )

    @property
    def rows(self) -> list[int]:
        """Samples in a batch of each group; the last batch of a group may be shorter."""
        return [self.most // length for length in self.lengths]

    def rows_like(self, samples: PyTree[ArrayLike]) -> int:
        """Number of samples in a full batch with the same padding as these; sequences lie along the second axis."""
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(samples)]
        longest = max(shape[1] for shape in shapes if len(shape) > 1)
        return max(self.most // longest, shapes[0][0])


@dataclasses.dataclass(frozen=True, eq=False)
class EpochBatchSampler:
    """Indices of the samples in each batch. It is immutable, so that several epochs can be iterated at a time.

    With `groups`, samples of one group share batches. If a group ends within a batch, samples of the next higher group
    fill it up, so that there are as many batches as without groups. With `token_batches`, a batch has samples of only
    one group. `make_loader` checks the fields.
    """

    num_samples: int  # N
    batch_size: int  # B; the last batch may be shorter
    _: dataclasses.KW_ONLY
    shuffle: bool  # a new order in each epoch, instead of ascending indices
    drop_last: bool  # leave out a last batch that is shorter than the others
    seed: int  # of the order
    groups: Int[np.ndarray, " N"] | None = None  # the group of each sample
    # replaces B; the last batch of a group may be shorter
    token_batches: TokenBatches | None = None

    def __len__(self) -> int:
        """Batches in an epoch."""
        return self.num_samples // self.batch_size if self.drop_last else len(self._begins) - 1

    def epoch(
        self,
        epoch: int,
        first_batch: int = 0,
        batches_at_once: Callable[[], int] = lambda: 1,
        num_batches: int | None = None,
    ) -> Iterator[EpochIndices]:
        """Yield the indices of one batch after another.

        Args:
            epoch: number of the epoch; with the seed it determines the order.
            first_batch: the batch to begin with, for a resumed run.
            batches_at_once: called before each item; the item holds the indices of that many consecutive batches.
            num_batches: maximum number of batches; None for the rest of the epoch.
        """
        rng = np.random.default_rng([self.seed, epoch])
        order = np.arange(self.num_samples)  # is cut into batches
        batches = np.arange(len(self))
        if self.shuffle:
            order = rng.permutation(order)
        if self.drop_last:
            # before the groups are sorted, so that it is not always the highest that is left out
            order = order[: len(self) * self.batch_size]
        if self.groups is not None:
            order = order[np.argsort(self.groups[order], kind="stable")]
            if self.shuffle:
                # else an epoch would go from the lowest group to the highest
                batches = rng.permutation(batches)
        remaining = batches[first_batch:][:num_batches]
        while len(remaining):
            current, remaining = np.split(remaining, [batches_at_once()])
            indices = [order[self._begins[batch] : self._begins[batch + 1]] for batch in current]
            yield EpochIndices(np.concatenate(indices).tolist(), epoch)

    @functools.cached_property
    def _begins(self) -> Int[np.ndarray, " batches_1"]:
        """Offsets in the order of an epoch at which batches begin, and at which the last batch ends."""
        counts = np.array([self.num_samples])  # samples of each group
        sizes = [self.batch_size]  # of the batches of each group
        if self.groups is not None and self.token_batches is not None:
            sizes = self.token_batches.rows
            counts = np.bincount(self.groups, minlength=len(sizes))
        ends = np.cumsum(counts)
        groups = zip(ends - counts, ends, sizes, strict=True)
        begins = [np.arange(begin, end, size) for begin, end, size in groups]
        return np.concatenate([*begins, ends[-1:]])
