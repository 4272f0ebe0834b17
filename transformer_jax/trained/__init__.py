"""Trained models: open a run, export it, find the model that `--pretrained` names.

Imports `training`, `weights` and the wings below them; a task only when it opens a run of it.
"""
