"""The files that a run writes: its directory, its checkpoints, its TensorBoard events.

Imports `config` and `errors`; nothing of models or training.
"""
