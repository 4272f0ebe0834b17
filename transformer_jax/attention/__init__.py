"""Attention as a function of queries, keys and values, and the ways in which it is computed."""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
