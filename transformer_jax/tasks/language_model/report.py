"""Report on a trained language model: bits per byte compared with compressors, and samples."""

import gzip
import lzma
from collections.abc import Callable, Mapping

from transformer_jax.devices.processes import say
from transformer_jax.errors import visible
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.tasks.language_model.windows import Text, TextSplits

MAX_LEARNED = 2**24  # bytes at the end of the training text that compressors learn from
NUM_SAMPLES = 3
PROMPT_BYTES = 40  # of the test text
SAMPLES = "samples.txt"

COMPRESSORS: Mapping[str, Callable[[bytes], bytes]] = {  # at their highest level
    "gzip": lambda text: gzip.compress(text, 9, mtime=0),
    "xz": lambda text: lzma.compress(text, preset=9 | lzma.PRESET_EXTREME),
}


def other_bits(text: TextSplits) -> dict[str, float]:
    """Bits per byte of the test text that compressors need, by their names.

    A compressor is fed the last `MAX_LEARNED` bytes of the training text, then the test text; its score is the growth
    of its output. gzip's window is 32 KiB; xz sees everything.
    """
    train = text.train[-MAX_LEARNED:].tobytes()
    test = text.test.tobytes()
    bits: dict[str, float] = {}
    for name, compress in COMPRESSORS.items():
        growth = len(compress(train + test)) - len(compress(train))
        bits[f"{name} after the training text"] = 8 * growth / len(test)
    return bits


def table(bits: Mapping[str, float]) -> str:
    """A line for each name, the fewest bits first."""
    width = max(map(len, bits))
    names = sorted(bits, key=bits.__getitem__)
    return "\n".join(f"  {name:<{width}}  {bits[name]:.3f}" for name in names)


def prompts(text: Text) -> list[bytes]:
    """The beginnings of equal parts of a text."""
    starts = [number * len(text) // NUM_SAMPLES for number in range(NUM_SAMPLES)]
    return [text[start : start + PROMPT_BYTES].tobytes() for start in starts]


def save_samples(run: RunDirectory, texts: list[bytes], continuations: list[bytes]) -> None:
    """Save texts with their continuations in the run's directory, and print them."""
    samples = []
    for prompt, continuation in zip(texts, continuations, strict=True):
        before = prompt.decode(errors="replace")
        after = visible(continuation.decode(errors="replace"), keep="\n")
        samples.append(f"--- after {before!r}:\n{after}\n")
    text = "\n".join(samples)
    run.save_text(SAMPLES, text)
    say(f"Samples:\n{text}")
