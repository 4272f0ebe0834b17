"""Report on a trained language model: bits per byte beside compressors and an n-gram model, samples."""

import gzip
import lzma
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float, UInt64

from transformer_jax.tasks.byte_text import visible
from transformer_jax.tasks.language_model.windows import FIRST, Text, TextSplits
from transformer_jax.training.trainer import TrainerModule

NUM_BYTES = 256
ORDER = 5  # bytes of context of the n-gram model
MAX_LEARNED = 2**24  # bytes at the end of the training text that n-grams and compressors learn from
NUM_SAMPLES = 3
PROMPT_BYTES = 40  # of the test text
SAMPLES = "samples.txt"

COMPRESSORS: Mapping[str, Callable[[bytes], bytes]] = {  # at their highest level
    "gzip": lambda text: gzip.compress(text, 9, mtime=0),
    "xz": lambda text: lzma.compress(text, preset=9 | lzma.PRESET_EXTREME),
}


def other_bits(text: TextSplits) -> dict[str, float]:
    """Bits per byte of the test text that an n-gram model and compressors need, by their names.

    The n-gram model has counted in the training text. A compressor is given the training text first, and the growth of
    its output counts; or the test text alone. Of more than `MAX_LEARNED` bytes of training text both get the last ones,
    and of what it is given gzip sees the last 32 KiB only, xz all. The size of the models themselves is not counted.
    """
    given = "the training text" if len(text.train) <= MAX_LEARNED else "the end of the training text"
    train, test = text.train[-MAX_LEARNED:].tobytes(), text.test.tobytes()
    order = min(ORDER, len(train) - 1)
    bits = {f"order-{order} n-grams": float(-np.log2(ngram_probabilities(train, test, order)).mean())}
    for name, compress in COMPRESSORS.items():
        growth = len(compress(train + test)) - len(compress(train))
        bits[f"{name} after {given}"] = 8 * growth / len(test)
        bits[f"{name} alone"] = 8 * len(compress(test)) / len(test)
    return bits


def ngram_probabilities(train: bytes, text: bytes, order: int) -> Float[np.ndarray, " N"]:
    """The probability of each byte of a text after those before it, of which the first bytes have fewer.

    Interpolated Witten–Bell smoothing over the contexts of 0 … `order` bytes, at most 7, counted in a training text
    that is longer: `p_k(b | c) = (n(c b) + u(c) p_{k-1}(b | c')) / (n(c) + u(c))`, where n counts, u(c) is the number
    of different bytes after the context c of k bytes, and c' is c without its first byte; `p_{-1} = 1 / 256`. After a
    context that never occurred it is p_{k-1}. Source: Witten and Bell 1991, method C; Chen and Goodman 1999, eq. 17.
    """
    probabilities = np.full(len(text), 1 / NUM_BYTES)
    for length in range(order + 1):
        counted, counts = np.unique(_grams(train, length), return_counts=True)
        contexts, first, different = np.unique(counted // NUM_BYTES, return_index=True, return_counts=True)
        of_context = np.add.reduceat(counts, first)
        grams = _grams(text, length)
        gram = np.minimum(np.searchsorted(counted, grams), len(counted) - 1)
        place = np.minimum(np.searchsorted(contexts, grams // NUM_BYTES), len(contexts) - 1)
        occurrences = np.where(counted[gram] == grams, counts[gram], 0)
        shorter = probabilities[length:]
        longer = (occurrences + different[place] * shorter) / (of_context[place] + different[place])
        probabilities[length:] = np.where(contexts[place] == grams // NUM_BYTES, longer, shorter)
    return probabilities


def _grams(text: bytes, length: int) -> UInt64[np.ndarray, " N"]:
    """Each run of `length` + 1 bytes of a text as a number in base 256."""
    array = np.frombuffer(text, np.uint8)
    grams = np.zeros(max(0, len(array) - length), np.uint64)
    for first in range(length + 1):
        grams = grams * NUM_BYTES + array[first : first + len(grams)]
    return grams


def table(bits: Mapping[str, float]) -> str:
    """A line for each name, the fewest bits first."""
    width = max(map(len, bits))
    return "\n".join(f"  {name:<{width}}  {bits[name]:.3f}" for name in sorted(bits, key=bits.__getitem__))


def prompts(text: Text) -> list[bytes]:
    """The beginnings of equal parts of a text."""
    length = min(PROMPT_BYTES, len(text))
    starts = [number * len(text) // NUM_SAMPLES for number in range(NUM_SAMPLES)]
    return [text[start : start + length].tobytes() or FIRST for start in starts]


def save_samples(trainer: TrainerModule, given: list[bytes]) -> None:
    """Continue these texts, print what comes out and save it in the run's directory."""
    samples = []
    for prompt, continued in zip(given, trainer.predict(given), strict=True):
        before, after = (part.decode(errors="replace") for part in (prompt, continued))
        after = visible(after, keep="\n")
        samples.append(f"--- after {before!r}:\n{after}\n")
    text = "\n".join(samples)
    print(f"Samples:\n{text}")
    trainer.run.save_text(SAMPLES, text)
