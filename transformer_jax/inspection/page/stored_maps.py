"""Attention maps as text in a page: gzip and base64 of float32, or of whole multiples of a step where they are many."""

import base64
import gzip
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MAX_EXACT = 250_000  # weights of a page that are stored as they are
MAX_BYTES = 8_600_000  # of all maps of a page, as text
STEPS = (1e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3)  # the finest is taken with which the maps have room
OVERHEAD = 1.06  # of gzip beyond the entropy


class StoredMap(NamedTuple):
    """The maps of one layer, [H T S]."""

    text: str  # base64 of gzip of float32; or, with a step, of the multiples' lowest bytes, then of the next ones
    shape: tuple[int, ...]
    step: float  # 0 for float32
    largest: float


def stored_maps(maps: Sequence[Float[np.ndarray, "_H _T _S"]]) -> list[StoredMap]:
    """All maps of a page, in one precision."""
    if sum(map(np.size, maps)) <= MAX_EXACT or min(of_layer.min(initial=0) for of_layer in maps) < 0:
        return [_stored(of_layer, 0.0) for of_layer in maps]
    step = next((step for step in STEPS if sum(_bytes(of_layer, step) for of_layer in maps) <= MAX_BYTES), STEPS[-1])
    return [_stored(of_layer, step) for of_layer in maps]


def packed(content: bytes) -> str:
    """The bytes as text that a browser can unpack by itself."""
    return base64.b64encode(gzip.compress(content, compresslevel=6, mtime=0)).decode("ascii")


def _stored(weights: Float[np.ndarray, "H T S"], step: float) -> StoredMap:
    shape, largest = weights.shape, float(weights.max(initial=0))
    if not step:
        return StoredMap(packed(weights.astype("<f4").tobytes()), shape, 0.0, largest)
    multiples = _multiples(weights, step)
    num_planes = 1 + int(multiples.max(initial=0)).bit_length() // 8
    planes = [(multiples >> 8 * plane).astype(np.uint8).tobytes() for plane in range(num_planes)]  # modulo 256
    return StoredMap(packed(b"".join(planes)), shape, step, largest)


def _multiples(weights: Float[np.ndarray, "H T S"], step: float) -> np.ndarray:
    return np.rint(weights / step).astype(np.int32)


def _bytes(weights: Float[np.ndarray, "H T S"], step: float) -> float:
    """About how long the text will be: the entropy of the multiples."""
    counts = np.bincount(_multiples(weights, step).ravel())
    frequencies = counts[counts > 0] / weights.size
    bits = -float((frequencies * np.log2(frequencies)).sum())
    return weights.size * bits / 8 * OVERHEAD * 4 / 3
