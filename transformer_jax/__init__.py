"""transformer-jax: a Transformer in JAX and Flax to understand, trust and bend.

Letters of dimensions, in types, docstrings and comments alike:

    B  batch                          H  heads
    T  query or target length         d  width of one head, D / H
    S  key or source length           F  feed-forward width
    D  model width                    L  layers
    C  classes                        V  vocabulary
    K  beams, steps of a call         N  rows that are decoded, B or B·K
"""

import importlib.metadata
import platform
import sys
import warnings

SUPPORTED = "Python 3.11 or newer and jax 0.10 to 0.12"  # as in pyproject.toml

if sys.version_info < (3, 11):  # noqa: UP036  # a checkout runs with any Python
    sys.tracebacklimit = 0  # the line says it all
    raise ImportError(f"transformer-jax needs {SUPPORTED}; this is Python {platform.python_version()}")
_jax = importlib.metadata.version("jax")
if tuple(map(int, _jax.split(".")[:2])) < (0, 10):
    sys.tracebacklimit = 0
    raise ImportError(f"transformer-jax needs {SUPPORTED}; this is jax {_jax}")
if tuple(map(int, _jax.split(".")[:2])) > (0, 12):
    warnings.warn(f"transformer-jax was tested with {SUPPORTED}; this is jax {_jax}", stacklevel=2)

import lazy_loader  # noqa: E402  # after the check of versions

# The public names are in `__init__.pyi`. Each is imported when it is first used, so that a model does not wait for
# PyTorch or matplotlib.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
