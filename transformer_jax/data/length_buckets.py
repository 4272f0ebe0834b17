"""A few shapes to pad pairs of sequences to, so that few programs are compiled and little padding is computed."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

MAX_SHAPES = 4  # each is a compilation of its own
NUM_CANDIDATES = 32  # lengths at which one shape may give way to the next; all their combinations are tried


class Shape(NamedTuple):
    """Lengths that a batch is padded to."""

    source: int
    target: int


def choose_shapes(
    source_lengths: Int[np.ndarray, " N"], target_lengths: Int[np.ndarray, " N"], max_shapes: int = MAX_SHAPES
) -> list[Shape]:
    """The shapes that hold all pairs with the least padding, from the smallest to the largest.

    Pairs are parted by the longer of their two lengths. A shape is as long as the longest source and the longest
    target among the pairs up to its boundary.

    Args:
        source_lengths: of each pair.
        target_lengths: of each pair.
        max_shapes: at most as many are chosen.

    Raises:
        ValueError: there are no pairs.
    """
    if len(source_lengths) == 0:
        raise ValueError("there are no pairs to choose shapes for")
    sizes = np.maximum(source_lengths, target_lengths)
    boundaries = np.unique(np.linspace(sizes.min(), sizes.max(), NUM_CANDIDATES).astype(int))
    below = sizes <= boundaries[:, None]  # [boundary N]
    shapes = [Shape(int(source_lengths[pairs].max()), int(target_lengths[pairs].max())) for pairs in below]
    last = len(boundaries) - 1
    num_shapes = min(max_shapes, len(boundaries))
    choices = np.array([(*choice, last) for choice in combinations(range(last), num_shapes - 1)])  # [choice shape]
    num_pairs = np.diff(below.sum(1)[choices], axis=1, prepend=0)
    positions = (num_pairs * np.array(shapes).sum(1)[choices]).sum(1)  # that all padded pairs have, [choice]
    return [shapes[index] for index in choices[positions.argmin()]]


def smallest_shape(
    source_lengths: Int[np.ndarray, " N"], target_lengths: Int[np.ndarray, " N"], shapes: Sequence[Shape]
) -> Int[np.ndarray, " N"]:
    """For each pair the index of the first shape that holds it.

    Raises:
        ValueError: no shape holds a pair.
    """
    sources, targets = np.array(shapes).T
    fits = (source_lengths[:, None] <= sources) & (target_lengths[:, None] <= targets)  # [N shape]
    if not fits.any(1).all():
        index = int(np.argmin(fits.any(1)))
        raise ValueError(
            f"a pair has lengths {int(source_lengths[index])} and {int(target_lengths[index])}; "
            f"the largest shape is {tuple(shapes[-1])}"
        )
    return fits.argmax(1)
