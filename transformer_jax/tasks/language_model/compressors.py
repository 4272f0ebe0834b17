"""Bits per byte of a text that general compressors need."""

import gzip
import lzma
from collections.abc import Callable, Mapping

from transformer_jax.errors import InputError


def _gzip(data: bytes) -> bytes:
    return gzip.compress(data, 9, mtime=0)


def _xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)


COMPRESSORS: Mapping[str, Callable[[bytes], bytes]] = {"gzip": _gzip, "xz": _xz}  # at their highest level


def bits_alone(compress: Callable[[bytes], bytes], text: bytes) -> float:
    """Bits for each byte of a text that is compressed by itself, headers counted.

    Raises:
        InputError: the text is empty.
    """
    return bits_after(compress, text, b"")


def bits_after(compress: Callable[[bytes], bytes], text: bytes, context: bytes) -> float:
    """Bits for each byte of a text by which the compressed context grows when the text follows it.

    Raises:
        InputError: the text is empty.
    """
    if not text:
        raise InputError("the text is empty; it must have at least one byte")
    before = len(compress(context)) if context else 0
    return 8 * (len(compress(context + text)) - before) / len(text)
