"""Memory of a process of tests."""

import ctypes
import gc
import math

import jax
import psutil

# Above, a process frees its programs. All libraries that the tests import take 0.7 GB besides files.
FULL_BYTES = 1_000_000_000
LEAST_GROWTH = 25_000_000  # bytes of programs before they are freed again

_least_bytes = math.inf  # since the programs were freed


def free_programs_if_full() -> None:
    """Free the compiled programs of a process that has grown: JAX keeps them all, and the cache has them anyway."""
    global _least_bytes
    size = own_bytes()
    _least_bytes = min(_least_bytes, size)  # a fixture may have been freed meanwhile
    if size > max(FULL_BYTES, _least_bytes + LEAST_GROWTH):
        jax.clear_caches()
        gc.collect()
        if release := getattr(ctypes.CDLL(None), "malloc_trim", None):  # of glibc, which keeps freed memory otherwise
            release(0)
        _least_bytes = own_bytes()


def own_bytes() -> int:
    """Memory of this process besides the files that it shares with others, where the system tells."""
    memory = psutil.Process().memory_info()
    return memory.rss - getattr(memory, "shared", 0)
