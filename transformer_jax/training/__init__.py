"""Training: the pure step, the loop around it, and `TrainerModule`, which a task extends.

To read in this order: `metrics`, `step`, `task` (the hooks), `loop`, `fitting` (sets up a run), `trainer`.
The journal opens and closes the event file and asks for checkpoints; `runs` writes both.

Imports the wings below: `runs`, `data`, `nn`, `config`, `errors`.
"""

import lazy_loader

# The public names are in `__init__.pyi`; each is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
