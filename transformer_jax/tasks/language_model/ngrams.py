"""An n-gram model of bytes with Witten–Bell smoothing, which a language model should beat."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt64

from transformer_jax.errors import InputError, check_sizes
from transformer_jax.tasks.language_model.config import NUM_BYTES

MAX_ORDER = 7  # a context and the byte after it are one number of 64 bits


class Counts(NamedTuple):
    """How often each byte follows each context of k bytes."""

    grams: UInt64[np.ndarray, " G"]  # contexts with a byte after them that occur, ascending, as numbers in base 256
    of_gram: Int[np.ndarray, " G"]
    contexts: UInt64[np.ndarray, " C"]  # ascending
    of_context: Int[np.ndarray, " C"]  # bytes that follow it, n(c)
    different: Int[np.ndarray, " C"]  # different bytes among these, u(c)


class WittenBell:
    """Interpolated Witten–Bell smoothing over the contexts of 0 … `order` bytes.

    `p_k(b | c) = (n(c b) + u(c) p_{k-1}(b | c')) / (n(c) + u(c))`, where n counts, u(c) is the number of different
    bytes after the context c of k bytes, and c' is c without its first byte; `p_{-1} = 1 / 256`. After a context that
    never occurred it is p_{k-1}. Source: Witten and Bell 1991, method C; Chen and Goodman 1999, equation 17.

    Args:
        text: to count in.
        order: longest context in bytes.

    Raises:
        InputError: `order` is outside 0 … 7, or the text has at most `order` bytes.
    """

    def __init__(self, text: bytes, order: int = 5) -> None:
        check_sizes(0, order=order)
        if order > MAX_ORDER:
            raise InputError(f"order is {order}; it may be at most {MAX_ORDER}")
        if len(text) <= order:
            raise InputError(f"the text has {len(text)} bytes; it must have more than order, {order}")
        self.order = order
        self._counts = [_counts(text, length) for length in range(order + 1)]

    def probabilities(self, text: bytes) -> Float[np.ndarray, " N"]:
        """The probability of each byte of a text after those before it, of which the first bytes have fewer."""
        probabilities = np.full(len(text), 1 / NUM_BYTES)
        for length, counts in enumerate(self._counts):
            grams = _grams(text, length)
            if not len(grams):
                break
            place = np.minimum(np.searchsorted(counts.contexts, grams >> np.uint64(8)), len(counts.contexts) - 1)
            is_known = counts.contexts[place] == grams >> np.uint64(8)
            gram = np.minimum(np.searchsorted(counts.grams, grams), len(counts.grams) - 1)
            occurrences = np.where(counts.grams[gram] == grams, counts.of_gram[gram], 0)
            different, shorter = counts.different[place], probabilities[length:]
            longer = (occurrences + different * shorter) / (counts.of_context[place] + different)
            probabilities[length:] = np.where(is_known, longer, shorter)
        return probabilities

    def bits_per_byte(self, text: bytes) -> float:
        """Mean of -log₂ of the bytes' probabilities."""
        return float(-np.log2(self.probabilities(text)).mean())


def _grams(text: bytes, length: int) -> UInt64[np.ndarray, " N"]:
    """Each run of `length` + 1 bytes of a text as a number in base 256."""
    array = np.frombuffer(text, np.uint8)
    grams = np.zeros(max(0, len(array) - length), np.uint64)
    for first in range(length + 1):
        grams = (grams << np.uint64(8)) | array[first : first + len(grams)]
    return grams


def _counts(text: bytes, length: int) -> Counts:
    grams, of_gram = np.unique(_grams(text, length), return_counts=True)
    contexts, first, different = np.unique(grams >> np.uint64(8), return_index=True, return_counts=True)
    return Counts(grams, of_gram, contexts, np.add.reduceat(of_gram, first), different)
