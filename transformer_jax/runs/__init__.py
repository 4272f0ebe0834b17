"""The files that a run writes: its directory, its checkpoints, its TensorBoard events.

The training loop opens and closes the event file.

Imports `config` and `errors`; nothing of models or training.
"""
