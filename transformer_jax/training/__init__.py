"""Training: the pure step, the loop around it, how devices share it, and `TrainerModule`, which a task extends.

Imports the wings below: `runs`, `data`, `nn`, `config`, `errors`.
"""
