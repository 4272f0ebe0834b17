"""What a run writes: its directory, its checkpoints, its TensorBoard events.

Imports `data`, `config`, `errors`; nothing of models or training.
"""
