"""transformer-jax: a Transformer in JAX and Flax to understand, trust and bend.

Letters of dimensions, in types, docstrings and comments alike:

    B  batch                          H  heads
    T  query or target length         d  width of one head, D / H
    S  key or source length           F  feed-forward width
    D  model width                    L  layers
    C  classes                        V  vocabulary
    K  beams, steps of a call         N  rows that are decoded, B or B·K
"""

import lazy_loader

# The public names are in `__init__.pyi`. Each is imported when it is first used, so that a model does not wait for
# PyTorch or matplotlib.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
