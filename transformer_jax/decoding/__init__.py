"""Autoregressive decoding with a step function: greedy decoding, sampling, beam search.

Imports JAX and `errors`, but no model.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
