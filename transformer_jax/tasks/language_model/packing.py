"""Windows filled with whole texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from transformer_jax.data.batch import ArrayDataset
from transformer_jax.data.fingerprint import fingerprint
from transformer_jax.tasks.language_model.windows import UNSCORED, Tokens


class PackedTexts(ArrayDataset):
    """Windows of `seq_len` tokens that hold whole texts. Each token of a text is a target exactly once.

    Each text ends with the token `end`, its last target. In the inputs, `end` precedes the first token of each text. A
    text that is longer than a window is cut into parts, which count as texts of their own. Inputs are the tokens, and
    the position of each in its text: a text begins at each 0. Padding, `UNSCORED` among the targets, is at the end of a
    window, and has position 0.

    Args:
        text: tokens of all texts.
        end: the token at the end of each text; the last one may lack it.
        seq_len: T.

    Attributes:
        lengths: number of tokens of each text, with a 0 if the last text has its `end`.
    """

    def __init__(self, text: Tokens, end: int, seq_len: int) -> None:
        after_ends = np.flatnonzero(text == end) + 1
        self.lengths = np.diff(after_ends, prepend=0, append=len(text))
        starts = np.cumsum(self.lengths) - self.lengths
        # of each token in its text, or in its part of a text
        positions = (np.arange(len(text)) - np.repeat(starts, self.lengths)) % seq_len
        sizes = np.diff(np.flatnonzero(positions == 0), append=len(text))  # of texts and parts
        places = first_fit(sizes.tolist(), seq_len)  # where they begin, all windows in a row
        inputs = np.append(end, text[:-1])
        num_windows = max(places) // seq_len + 1
        # [3 windows·T], padding where no token is
        packed = np.full((3, num_windows * seq_len), [[end], [0], [UNSCORED]], np.int32)
        columns = np.repeat(places, sizes) + positions  # of the tokens
        packed[:, columns] = inputs, positions, text
        inputs, positions, targets = packed.reshape(3, num_windows, seq_len)
        super().__init__((inputs, positions), targets)

    def summary(self) -> str:
        """How many texts there are, and how much of the windows they fill."""
        size, seq_len = self.targets.shape
        return (
            f"Texts: {np.count_nonzero(self.lengths)}, which fill"
            f" {self.lengths.sum() / self.targets.size:.1%} of {size} windows;"
            f" {np.count_nonzero(self.lengths > seq_len)} are longer than --seq-len, and cut"
        )

    def fingerprint(self) -> str:
        """SHA-256 of the windows."""
        return fingerprint([], [self.inputs, self.targets])


def first_text(window: Any) -> Int[np.ndarray, " _"]:
    """Return the tokens of the first text in a window with its `end`, or those of a window that is not packed."""
    if not isinstance(window, tuple):
        return window
    tokens, positions = window
    length = np.count_nonzero(np.cumsum(positions == 0) == 1)
    return tokens[: length + 1]


def first_fit(sizes: Sequence[int], room: int) -> list[int]:
    """Put each text into the first window that still has room for it, after the texts that are there.

    Args:
        sizes: number of tokens of each text, at most `room`.
        room: number of tokens of a window.

    Returns:
        The place of each text in the windows, one after another: text i is in window `place // room`.
    """
    num_leaves = 1 << len(sizes).bit_length()
    # The most room in a window below each node of a binary tree. The children of node n are 2 n and 2 n + 1, and the
    # leaves are the windows.
    most_room = [room] * (2 * num_leaves)
    places = []
    for size in sizes:
        node = 1
        while node < num_leaves:
            node *= 2
            if most_room[node] < size:
                node += 1
        places.append((node - num_leaves + 1) * room - most_room[node])
        most_room[node] -= size
        while node > 1:
            node //= 2
            most_room[node] = max(most_room[2 * node], most_room[2 * node + 1])
    return places
