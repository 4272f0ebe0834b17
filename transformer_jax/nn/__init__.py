"""Flax modules: complete models and their layers.

Imports JAX, Flax, NumPy and `attention`; no trainer, and nothing that reads or writes files.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
