"""Inspect models: every activation has a name, and can be captured and changed.

Imports `trained` and the wings below it.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
