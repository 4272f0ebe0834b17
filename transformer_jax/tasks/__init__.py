"""The tasks: their settings, their data, their trainers. One file or one folder each.

Imports every other wing; nothing but `experiments/` and `benchmarks/` imports it.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
