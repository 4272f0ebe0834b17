"""Data for the compiled step: order of samples, loading, padding, stacking; downloads.

Imports `errors` and `trees`. Only `loader` imports PyTorch, for worker processes.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
