"""Windows of a text: at random places for training, and such that each byte is scored once for evaluation."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8

from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.data.stacked_samples import StackedSamples
from transformer_jax.errors import InputError, check_sizes
from transformer_jax.tasks.language_model.text_parts import Text, windows

FIRST = b"\n"  # stands before the first byte of a text that is scored
UNSCORED = -1  # target of a position that is only context

Sample = tuple[Int[np.ndarray, " T"], Int[np.ndarray, " T"]]


class RandomWindows:
    """Windows of `seq_len` bytes at random places, each with the byte after every position as the target.

    The place of a window is a function of (seed, epoch, index); all are equally probable.

    Args:
        text: the part that they are from.
        seq_len: T.
        size: windows in an epoch.
        seed: of the draws.

    Raises:
        InputError: `seed` is negative, or `seq_len` or `size` below 1; or the text is shorter than a window and its
            last target.
    """

    def __init__(self, text: Text, seq_len: int, size: int, seed: int) -> None:
        check_sizes(seq_len=seq_len, size=size)
        check_sizes(0, seed=seed)
        if len(text) <= seq_len:
            raise InputError(f"seq_len is {seq_len}; the text has {len(text)} bytes and must have more")
        self.text, self.seq_len, self.size, self.seed = text, seq_len, size, seed
        self._drawn: tuple[int, Int[np.ndarray, " N"]] | None = None  # the latest epoch and its places

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Sample:
        sample: Sample = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        epoch = indices.epoch if isinstance(indices, EpochIndices) else 0
        return StackedSamples(_shifted(windows(self.text, self.places(epoch)[indices], self.seq_len + 1)))

    def places(self, epoch: int) -> Int[np.ndarray, " N"]:
        """Where the windows of an epoch begin."""
        if self._drawn is None or self._drawn[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._drawn = epoch, rng.integers(len(self.text) - self.seq_len, size=self.size)
        return self._drawn[1]

    def fingerprint(self) -> str:
        """SHA-256 of all that the windows are drawn from: the text, their length and number, and the seed."""
        return fingerprint([], [np.array([self.seq_len, self.size, self.seed]), self.text])


class ScoredWindows:
    """Windows of which each byte of a text is the target once; other targets are `UNSCORED`.

    The first window begins with a line feed, which stands for what came before, and scores all of its T targets. Each
    further one begins `stride` bytes later and scores the last `stride` of its targets, which so have at least
    T - `stride` bytes of the text, and the byte before them, as context. The last window ends with the text, and scores
    what is left.

    Args:
        text: at least T bytes.
        seq_len: T.
        stride: 1 … T.

    Raises:
        InputError: the text is shorter than a window, or a number is outside its range.
    """

    def __init__(self, text: Text, seq_len: int, stride: int) -> None:
        check_sizes(seq_len=seq_len, stride=stride)
        if stride > seq_len:
            raise InputError(f"stride is {stride}; it may be at most seq_len, {seq_len}")
        if len(text) < seq_len:
            raise InputError(f"seq_len is {seq_len}; the text has {len(text)} bytes and must have as many")
        self.text, self.seq_len, self.stride = text, seq_len, stride

    def __len__(self) -> int:
        return 1 - (self.seq_len - len(self.text)) // self.stride

    def __getitem__(self, index: int) -> Sample:
        sample: Sample = self.__getitems__([index])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        numbers = np.asarray(indices, int)
        last = len(self.text) - self.seq_len  # where the last window's targets begin
        starts = np.minimum(numbers * self.stride, last)
        following = windows(self.text, starts, self.seq_len)  # [N T], the targets
        before = np.where(starts > 0, self.text[starts - 1], FIRST[0]).astype(np.uint8)
        inputs, targets = _shifted(np.column_stack([before, following]))
        scored_before = np.where(numbers > 0, (numbers - 1) * self.stride + self.seq_len, 0)  # bytes of the text
        is_new = starts[:, None] + np.arange(self.seq_len) >= scored_before[:, None]
        return StackedSamples((inputs, np.where(is_new, targets, UNSCORED).astype(np.int32)))

    def fingerprint(self) -> str:
        """SHA-256 of the text, and of the windows' length and stride."""
        return fingerprint([], [np.array([self.seq_len, self.stride]), self.text])


def _shifted(taken: UInt8[np.ndarray, "N T_1"]) -> tuple[Int[np.ndarray, "N T"], Int[np.ndarray, "N T"]]:
    """The bytes of each window but the last, and but the first."""
    ids = taken.astype(np.int32)
    return ids[:, :-1], ids[:, 1:]
