"""The forms in which NumPy holds an array: order, strides, byte order, type. Each is a function of an array."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Fortran order": np.asfortranarray,
    "slice": lambda array: np.repeat(array, 2, -1)[..., ::2],
    "negative strides": lambda array: array[..., ::-1].copy()[..., ::-1],
    "zero strides": lambda array: np.broadcast_to(array[..., :1], array.shape),
    "read-only": lambda array: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape),
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "big-endian in Fortran order": lambda array: np.asfortranarray(array.astype(array.dtype.newbyteorder(">"))),
    "float16": lambda array: np.asfortranarray(array.astype(np.float16)),
    "bfloat16": lambda array: np.asfortranarray(array.astype(jnp.bfloat16)),
}


def plain(array: np.ndarray) -> np.ndarray:
    """Copy an array in C order and native byte order."""
    return np.array(array, array.dtype.newbyteorder("="), order="C")


def assert_bitwise(found: np.ndarray, given: np.ndarray) -> None:
    """Assert that an array is the one that was given, in native byte order."""
    expected = plain(given)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.asarray(found).tobytes() == expected.tobytes()
