"""Memory of a process of tests."""

import ctypes
import gc

import jax
import psutil

# Above, a process frees its programs. All libraries that the tests import take 1.15 GB.
FULL_BYTES = 1_200_000_000
LEAST_GROWTH = 50_000_000  # bytes of programs before they are freed again

_allowed_bytes = FULL_BYTES


def free_programs_if_full() -> None:
    """Free the compiled programs of a process that has grown: JAX keeps them all, and the cache has them anyway."""
    global _allowed_bytes
    process = psutil.Process()
    if process.memory_info().rss > _allowed_bytes:
        jax.clear_caches()
        gc.collect()
        if release := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc, which keeps freed memory otherwise
            release(0)
        _allowed_bytes = max(FULL_BYTES, process.memory_info().rss + LEAST_GROWTH)
