"""Padding of texts to arrays of a few shapes, so that few programs are compiled."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Int

ABSENT = -1  # padding
SHORTEST = 16  # minimum padded length, in tokens
MOST_ROWS = 16  # in a batch

Text: TypeAlias = Int[np.ndarray, " _"]  # ids of its tokens


def filled_up(texts: Sequence[Text], length: int, *, at_left: bool) -> Int[np.ndarray, "rows {length}"]:
    """Pad texts with `ABSENT`, and rows to a power of two by repeating the last text."""
    found = np.full((_power_of_two(len(texts)), length), ABSENT, np.int32)
    for row in range(len(found)):
        text = texts[min(row, len(texts) - 1)]
        place = slice(length - len(text), None) if at_left else slice(len(text))
        found[row, place] = text
    return found


def length_for(size: int, longest: int) -> int:
    """Padded length of a text of `size` tokens: a power of two, limited to `longest`."""
    return min(_power_of_two(max(size, SHORTEST)), max(longest, size))


def in_batches(keys: Sequence[tuple[int, ...]], most_rows: int = MOST_ROWS) -> Iterable[list[int]]:
    """Yield batches of indices of texts that have the same key."""
    for key in sorted(set(keys)):
        numbers = [number for number, of_it in enumerate(keys) if of_it == key]
        yield from (numbers[start : start + most_rows] for start in range(0, len(numbers), most_rows))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
