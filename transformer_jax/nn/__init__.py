"""Flax modules of the models, and the functions that they are made of.

Imports JAX, Flax, NumPy and `attention`; no trainer, no file.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
