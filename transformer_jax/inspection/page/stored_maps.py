"""Attention maps as text in a page: gzip and base64 of float32, or of whole multiples of a step where they are many."""

import base64
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MAX_EXACT = 250_000  # weights of a page that are stored as they are
STEP = 5e-4  # of the weights of other pages
GZIP = 31  # zlib's word for that format


class StoredMap(NamedTuple):
    """The maps of one layer, [H T S]."""

    text: str  # base64 of gzip of float32; or, with a step, of the multiples' lowest bytes, then of the next ones
    shape: tuple[int, ...]
    step: float  # 0 for float32
    largest: float


def stored_maps(maps: Sequence[Float[np.ndarray, "_H _T _S"]]) -> list[StoredMap]:
    """All maps of a page, in one precision."""
    is_exact = sum(map(np.size, maps)) <= MAX_EXACT or min(of_layer.min(initial=0) for of_layer in maps) < 0
    return [_stored(of_layer, 0.0 if is_exact else STEP) for of_layer in maps]


def packed(content: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> str:
    """The bytes as text that a browser can unpack by itself."""
    packer = zlib.compressobj(6, zlib.DEFLATED, GZIP, strategy=strategy)
    return base64.b64encode(packer.compress(content) + packer.flush()).decode("ascii")


def _stored(weights: Float[np.ndarray, "H T S"], step: int | float) -> StoredMap:
    shape, largest = weights.shape, float(weights.max(initial=0))
    if not step:
        return StoredMap(packed(weights.astype("<f4").tobytes()), shape, 0.0, largest)
    multiples = np.rint(weights / step).astype(np.int32)
    num_planes = 1 + int(multiples.max(initial=0)).bit_length() // 8
    planes = [(multiples >> 8 * plane).astype(np.uint8).tobytes() for plane in range(num_planes)]  # modulo 256
    # Zeros are repeated, nothing else is: to look for more takes time and makes the text longer.
    return StoredMap(packed(b"".join(planes), zlib.Z_RLE), shape, step, largest)
