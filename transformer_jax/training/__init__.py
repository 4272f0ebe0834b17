"""Training: the pure step, the loop around it, how devices share it, and `TrainerModule`, which a task extends.

The loop opens and closes the event file and asks for checkpoints; `runs` writes both.

Imports the wings below: `runs`, `data`, `nn`, `config`, `errors`.
"""
