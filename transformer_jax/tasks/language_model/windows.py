"""Parts of a text, and their windows: random ones for training, then windows that score each token once."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Integer, UInt8

from transformer_jax.data.batch import BatchDataset, StackedSamples
from transformer_jax.data.epoch_sampler import EpochIndices
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.outside_files import outside_file
from transformer_jax.tasks.language_model.docstrings import SEPARATOR, library_docstrings

HELD_OUT = 0.05  # of the text for validation, and as much for the test
MAX_HELD_OUT = 2**20  # bytes of each of the two
MAX_FILE_BYTES = 2**36
FIRST = b"\n"  # precedes the first token of a scored text
UNSCORED = -1  # target of a position that is only context

Text = UInt8[np.ndarray, " _"]
Tokens = Integer[np.ndarray, " _"]


class TextSplits(NamedTuple):
    """Parts of one text, in this order."""

    train: Text
    val: Text
    test: Text

    def sizes(self) -> dict[str, int]:
        """Bytes of each part."""
        return {name: len(part) for name, part in self._asdict().items()}


def load_text(path: Path | None, *, by_lines: bool = False) -> TextSplits:
    """Load the parts of a file, or of the standard library's docstrings.

    The first 90 % are for training, then come validation and test with 5 % each, at most `MAX_HELD_OUT`. No docstring,
    and no character of a UTF-8 file, is split between two parts.

    Args:
        path: path of any file; None for the docstrings.
        by_lines: whether no line of a file may be split between two parts.

    Raises:
        InputError: the file cannot be read, is not a regular file, or is empty.
    """
    if path is not None:
        with outside_file(path, "a text", MAX_FILE_BYTES) as file:
            text = np.memmap(file, np.uint8, "r")
        if not by_lines:
            return split_text(text)
        ends_of_lines = np.flatnonzero(text == FIRST[0]) + 1
        return split_text(text, np.append(ends_of_lines, len(text)))
    documents = [(text + SEPARATOR).encode(errors="replace") for text in library_docstrings()]
    ends = np.cumsum([len(document) for document in documents])
    return split_text(np.frombuffer(b"".join(documents), np.uint8), ends)


def split_text(text: Text, ends: Int[np.ndarray, " N_ends"] | None = None) -> TextSplits:
    """Split a text into parts, which `load_text` describes.

    Args:
        text: the whole text.
        ends: ends of the documents, where the text may be cut; None for anywhere.
    """
    size = len(text)
    held_out = min(int(HELD_OUT * size), MAX_HELD_OUT)
    cuts: Sequence[int] = [size - 2 * held_out, size - held_out]
    if ends is not None:
        cuts = [int(ends[np.searchsorted(ends, cut)]) for cut in cuts]
    else:
        cuts = [_before_a_character(text, cut) for cut in cuts]
    return TextSplits(*np.split(text, cuts))


def _before_a_character(text: Text, cut: int) -> int:
    """The first place from `cut` on that is not inside a UTF-8 character; `cut` itself in other files."""
    is_inside = text[cut : cut + 4] & 0xC0 == 0x80
    return cut + int(is_inside.argmin()) if is_inside.size else cut


def windows(
    text: Tokens, starts: Int[np.ndarray, " B"], length: int
) -> Integer[np.ndarray, "B {length}"]:
    """Copies of the windows of a text that begin at these starts."""
    return np.lib.stride_tricks.sliding_window_view(text, length)[starts]


class RandomWindows(BatchDataset):
    """Windows of `seq_len` tokens at random places, each with the token after every position as the target.

    The place of a window is a function of (seed, epoch, index); all are equally probable.

    Args:
        text: tokens of the training part, more than `seq_len`.
        seq_len: T.
        size: number of windows in an epoch.
        seed: seed of the draws.
    """

    def __init__(self, text: Tokens, seq_len: int, size: int, seed: int) -> None:
        self.text = text
        self.seq_len = seq_len
        self.size = size
        self.seed = seed
        # the latest epoch and its places
        self._drawn: tuple[int, Int[np.ndarray, " N"]] | None = None

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, indices: EpochIndices) -> StackedSamples:
        starts = self.places(indices.epoch)[indices]
        return StackedSamples(_shifted(windows(self.text, starts, self.seq_len + 1)))

    def places(self, epoch: int) -> Int[np.ndarray, " N"]:
        """Where the windows of an epoch begin."""
        if self._drawn is None or self._drawn[0] != epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._drawn = epoch, rng.integers(len(self.text) - self.seq_len, size=self.size)
        return self._drawn[1]

    def fingerprint(self) -> str:
        """SHA-256 of everything that determines the windows: the text, their length and number, and the seed."""
        return fingerprint([], [np.array([self.seq_len, self.size, self.seed]), self.text])


class ScoredWindows(BatchDataset):
    """Windows in which each token of a text is a target exactly once; all other targets are `UNSCORED`.

    The first window begins with a line feed, in place of an earlier token, and scores all of its T targets. Each
    further window begins `stride` tokens later and scores its last `stride` targets, which have at least T - `stride`
    tokens of the text, and the one before them, as context. The last window ends with the text, and scores the
    remaining targets.

    Args:
        text: at least T tokens.
        seq_len: T.
        stride: 1 … T.
        first: the line feed's token.
    """

    def __init__(self, text: Tokens, seq_len: int, stride: int, first: int = FIRST[0]) -> None:
        self.text = text
        self.seq_len = seq_len
        self.stride = stride
        self.first = first

    def __len__(self) -> int:
        return 1 - (self.seq_len - len(self.text)) // self.stride

    def __getitems__(self, indices: Sequence[int]) -> StackedSamples:
        numbers = np.asarray(indices, int)
        last = len(self.text) - self.seq_len  # where the last window's targets begin
        starts = np.minimum(numbers * self.stride, last)
        following = windows(self.text, starts, self.seq_len)  # [N T], the targets
        before = np.where(starts > 0, self.text[starts - 1], self.first)
        inputs, targets = _shifted(np.column_stack([before, following]))
        # tokens of the text
        scored_before = np.where(numbers > 0, (numbers - 1) * self.stride + self.seq_len, 0)
        is_new = starts[:, None] + np.arange(self.seq_len) >= scored_before[:, None]
        return StackedSamples((inputs, np.where(is_new, targets, UNSCORED).astype(np.int32)))

    def fingerprint(self) -> str:
        """SHA-256 of the text, and of the windows' length and stride."""
        return fingerprint([], [np.array([self.seq_len, self.stride]), self.text])


def _shifted(
    taken: Integer[np.ndarray, "N T_1"],
) -> tuple[Int[np.ndarray, "N T"], Int[np.ndarray, "N T"]]:
    """Inputs and targets: the tokens of each window without the last, and without the first."""
    ids = taken.astype(np.int32)
    return ids[:, :-1], ids[:, 1:]
