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
import re
import sys
import warnings

SUPPORTED = "Python 3.11 with jax 0.10, or Python 3.12 and newer with jax 0.11.2 to 0.12"  # as in pyproject.toml

if sys.version_info < (3, 11):  # noqa: UP036  # a checkout runs with any Python
    raise ImportError(f"transformer-jax needs {SUPPORTED}; this is Python {platform.python_version()}")
_jax = importlib.metadata.version("jax")
_release = tuple(map(int, re.findall(r"\d+", _jax)[:2]))
if _release < (0, 10):
    raise ImportError(f"transformer-jax needs {SUPPORTED}; this is jax {_jax}")
if _release > (0, 12):
    warnings.warn(f"transformer-jax was tested with {SUPPORTED}; this is jax {_jax}", stacklevel=2)

import lazy_loader  # noqa: E402  # after the check of versions

# The public names are in `__init__.pyi`. Each is imported when it is first used, so that a model does not wait for
# PyTorch or matplotlib.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
