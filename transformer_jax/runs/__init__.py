"""The files that a run writes: its directory, its checkpoints, its TensorBoard events.

The training loop opens and closes the event file.

Imports `config` and `errors`, but neither models nor training.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
