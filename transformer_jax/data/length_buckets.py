"""Length buckets for pairs of sequences, so that few programs are compiled and little padding is computed."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

import numpy as np
from jaxtyping import Int

Lengths: TypeAlias = Int[np.ndarray, " N"]  # a number for each pair
MAX_SHAPES = 4  # one compilation for each
NUM_CANDIDATES = 32  # lengths that may separate two shapes; all their combinations are tried


class Shape(NamedTuple):
    """Lengths to which a batch is padded."""

    source: int
    target: int


def choose_shapes(
    source_lengths: Lengths,
    target_lengths: Lengths,
    max_shapes: int = MAX_SHAPES,
) -> list[Shape]:
    """Choose the shapes that hold all pairs with the least padding, from the smallest to the largest.

    The size of a pair is the longer of its two lengths. A shape ends at a certain size; it is as long as the longest
    source and the longest target among the pairs up to that size.

    Args:
        source_lengths: length of each pair's source.
        target_lengths: length of each pair's target.
        max_shapes: maximum number of shapes.
    """
    sizes = np.maximum(source_lengths, target_lengths)
    boundaries = np.unique(np.linspace(sizes.min(), sizes.max(), NUM_CANDIDATES).astype(int))
    shapes = []
    num_below = []  # pairs that fit into each shape
    for boundary in boundaries:  # one [N] at a time, which may be large
        pairs = sizes <= boundary
        shapes.append(Shape(int(source_lengths[pairs].max()), int(target_lengths[pairs].max())))
        num_below.append(int(pairs.sum()))
    last = len(boundaries) - 1
    num_shapes = min(max_shapes, len(boundaries))
    # [choice shape]
    choices = np.array([(*choice, last) for choice in combinations(range(last), num_shapes - 1)])
    num_pairs = np.diff(np.array(num_below)[choices], axis=1, prepend=0)  # [choice shape]
    lengths = np.array(shapes).sum(1)  # of source and target together
    positions = (num_pairs * lengths[choices]).sum(1)  # [choice], in all padded pairs together
    return [shapes[index] for index in choices[positions.argmin()]]


def smallest_shape(
    source_lengths: Lengths,
    target_lengths: Lengths,
    shapes: Sequence[Shape],
) -> Lengths:
    """Return for each pair the index of the first shape that holds it; each pair must fit into some shape.

    Args:
        source_lengths: length of each pair's source.
        target_lengths: length of each pair's target.
        shapes: the shapes, from the smallest to the largest.
    """
    sources, targets = np.array(shapes).T
    fits = (source_lengths[:, None] <= sources) & (target_lengths[:, None] <= targets)  # [N shape]
    return fits.argmax(1)
