"""How a task is trained: programs, loop, callbacks, logs, checkpoints; and `TrainerModule`, which a task extends.

To read in this order: `loop`, `fitting` (sets up a run), `trainer`.
The journal opens and closes the event file and asks for checkpoints; `runs` writes both.
"""
