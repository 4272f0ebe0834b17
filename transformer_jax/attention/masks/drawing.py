"""Drawings of masks as text."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool

from transformer_jax.attention.score_block import Range

MAX_CELLS = 32  # along each side
SEEN, SOME, UNSEEN = "■", "▒", "·"


class Drawing(str):
    """Text that a Python prompt shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def draw(part: Callable[[Range, Range], Bool[np.ndarray, "q k"]], num_queries: int, num_keys: int) -> Drawing:
    """Draw a mask: a line for each query and a sign for each key, or for each block of them where there are many.

    Args:
        part: the mask of a range of queries and a range of keys.
        num_queries: T.
        num_keys: S.
    """
    height, width = -(-num_queries // MAX_CELLS), -(-num_keys // MAX_CELLS)  # of a cell
    starts = np.arange(0, num_keys, width)
    sizes = np.minimum(starts + width, num_keys) - starts
    lines = []
    for first in range(0, num_queries, height):
        rows = part(Range(first, min(height, num_queries - first)), Range(0, num_keys))
        shares = np.add.reduceat(rows.sum(0), starts) / (len(rows) * sizes)
        lines.append(" ".join(SEEN if share == 1 else UNSEEN if share == 0 else SOME for share in shares))
    return Drawing("\n".join(lines))
