"""Texts of unequal lengths as arrays of a few shapes, so that few programs are compiled."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Int

ABSENT = -1  # in the place of a token
SHORTEST = 16  # tokens to which shorter texts are filled up
MOST_ROWS = 16  # of a batch

Text: TypeAlias = Int[np.ndarray, " _"]  # ids of its tokens


def filled_up(texts: Sequence[Text], length: int, *, at_left: bool) -> Int[np.ndarray, "rows {length}"]:
    """Texts with `ABSENT` before or after them; the last one once more where a power of two of rows is not full."""
    found = np.full((_power_of_two(len(texts)), length), ABSENT, np.int32)
    for row in range(len(found)):
        text = texts[min(row, len(texts) - 1)]
        place = slice(length - len(text), None) if at_left else slice(len(text))
        found[row, place] = text
    return found


def length_for(size: int, longest: int) -> int:
    """The length to which a text of `size` tokens is filled up: a power of two, or the longest that there can be."""
    return min(_power_of_two(max(size, SHORTEST)), max(longest, size))


def in_batches(keys: Sequence[tuple[int, ...]], most_rows: int = MOST_ROWS) -> Iterable[list[int]]:
    """Numbers of texts in batches, in each of which all have the same key."""
    for key in sorted(set(keys)):
        numbers = [number for number, of_it in enumerate(keys) if of_it == key]
        yield from (numbers[start : start + most_rows] for start in range(0, len(numbers), most_rows))


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()
